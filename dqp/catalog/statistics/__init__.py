"""What is known of tables beside what their source says: ``counting`` how many rows there are, ``sampling`` statistics
of columns, ``kept`` both as long as they hold, ``learned`` what statements turned out to be.

Another way to know something of a table or a statement goes here. It asks a source through what it is given; the
package imports ``dqp.algebra`` and ``dqp.catalog.sources``.
"""
