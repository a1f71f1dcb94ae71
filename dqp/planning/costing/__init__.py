"""Estimates the rows of operators and their cost in seconds, from the statistics of the sources.

``cost`` estimates operators, ``columns`` defines the statistics of columns, ``computed`` estimates those of
expressions, ``estimates`` has both for an operator; ``selectivity`` has the effect of predicates and joins. ``work``
estimates the seconds of operators by product, ``reductions`` what keys leave of a statement's rows, ``elapsed`` the
seconds of a plan. The package imports ``dqp.algebra``, ``dqp.sql`` and ``dqp.planning.splitting``. An estimate for a
new operator is a method in ``cost``.
"""
