"""Semi-join reduction while a query runs: filters the statement for a large input by the keys of a small one.

``program`` chooses the steps and their order, ``forms`` the form of the keys, ``reduction`` adds the filter,
``grouping`` groups in the source what keys alone stood before, ``adaptive`` runs the steps. The package imports
``dqp.planning.rules`` and below. A new form of keys is a function in
``forms``.
"""
