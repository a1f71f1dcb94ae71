"""Finds resources and evaluators that a registry lists and that fit a condition, while the leases of their services
hold.

``conditions`` writes the condition in SPARQL. A ``Follower`` sends it to the registry, follows the registry's changes
in threads of its own, and reports the addresses. ``leases`` decides from the registry's last answers which leases hold.
``sources`` makes the addresses sources of a federation.

The configuration says whom to trust: entries of owners who are not in ``publishers`` are ignored, and no request goes
to an address that ``allow`` does not list. The package imports the catalog's ``sources`` and ``reflection``.
"""
