"""Distributes a tree over evaluators.

``spreading`` puts exchanges where they pay, ``partition`` cuts the tree there into fragments, ``placement`` says which
evaluator runs which fragment; ``splitting`` and ``parallel`` read a large scan in several parts. The package imports
``dqp.planning.costing``, ``dqp.sql`` and below.
"""
