"""The algebra: operators of a query's tree, and the values in them: tables, types, keys, constants, functions.

Everything here is a pure value: no module asks a source or writes SQL. The package imports only ``dai``. A new operator
is a class in ``operators``; ``dqp.sql.render`` and ``dqp.planning.costing.cost`` each need a method for it. What walks
or changes any tree is a function in ``trees``.
"""
