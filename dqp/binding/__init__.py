"""SQL text to operators: one module a clause.

``binder`` begins and calls the others; ``scope`` says which names an expression sees; ``verbatim`` leaves to DuckDB
what the operators have no form for. It imports ``dqp.catalog`` and ``dqp.algebra``.
"""
