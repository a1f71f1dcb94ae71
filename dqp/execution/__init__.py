"""Running one fragment: fetching its inputs, the DuckDB that computes it, operation calls, exchanges.

It imports ``dqp.planning`` and below; it does not know where a plan runs (``dqp.runtimes``).
"""
