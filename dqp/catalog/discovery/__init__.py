"""Services that a registry names: which resources (or evaluators) fit, as long as the leases of their services hold.

``conditions`` says in SPARQL what is sought. A ``Follower`` asks the registry that, follows its changes in threads of
its own, and tells who is to be told which addresses there are. ``leases`` is the part that decides without a registry,
from what it said last. ``sources`` makes sources of a federation of these addresses.

Who is believed is the configuration's matter: entries of other owners than its ``publishers`` count for nothing, and
nothing is asked at an address that ``allow`` does not list. Imports the catalog's ``sources`` and ``reflection``.
"""
