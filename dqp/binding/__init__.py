"""Binding: makes operators of SQL text, with every name resolved. One module binds one clause.

``binder`` starts and calls the others; ``parameters`` puts values into the text; ``scope`` resolves names;
``verbatim`` leaves to DuckDB what the operators have no form for; ``common_tables`` and ``needs`` say what it reads.
The package imports ``dqp.catalog``, ``dqp.algebra`` and below. A new clause is a new module; a new kind of
expression is a method in ``expressions``.
"""
