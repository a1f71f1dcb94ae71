"""Distribution over evaluators, decided before anything runs.

``spreading`` puts exchanges where they pay, ``partition`` cuts the tree there into fragments, ``placement`` says which
evaluator runs which fragment. The package imports ``dqp.planning.costing``, ``dqp.sql`` and below.
"""
