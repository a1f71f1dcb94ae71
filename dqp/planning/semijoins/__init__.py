"""Semi-join reduction while a query runs: filters the statement for a large input by the keys of a small one.

``program`` chooses the steps and their order, ``forms`` the form of the keys, ``reduction`` adds the filter,
``adaptive`` runs the steps. The package imports ``dqp.planning.costing`` and below. A new form of keys is a function in
``forms``.
"""
