"""Planning: turns the bound tree into the tree that runs.

``rules`` rewrite the tree with the estimates of ``costing``; ``semijoins`` filter large inputs by the keys of small
ones while the query runs; ``distribution`` cuts the tree into fragments for evaluators. Planning reads no rows from a
source. The package imports ``dqp.sql``, ``dqp.catalog``, ``dqp.algebra`` and below. A new rule is a module in ``rules``
and a line in ``RULES``; what rules ask about expressions goes into ``predicates``.
"""
