"""Operators to SQL text: DuckDB's for what runs here, the sources' dialects for what is pushed down.

It imports ``dqp.algebra``. A new dialect is one module in ``dialects`` and one line in its table.
"""
