"""From the tree as it was written to the tree that runs.

``rules`` rewrite the tree, by what ``costing`` expects; ``semijoins`` reduce large inputs by small ones while the query
runs; ``distribution`` cuts the tree into fragments for evaluators. Planning asks no source for rows. It imports
``dqp.sql``, ``dqp.catalog`` and ``dqp.algebra``. A new rule is one module in ``rules`` and one line in ``RULES``.
"""
