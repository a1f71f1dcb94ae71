"""Replica location: which targets (data services, files, URLs) hold a copy of what has a logical name.

A *local replica catalog* (``catalog``) stores the mappings of logical names to targets and the attributes of both, in a
database. A *replica location index* (``index``) knows which catalogs have a name, by what they send it (``updates``);
it holds nothing that lasts. ``Replicas`` is both, as one server has them. The interfaces are ``rpc`` (the protocol of
the original service) here and ``dai/api/routes/replicas/`` (HTTP). ``client`` asks such a server over HTTP;
``registration`` tells one the tables that a data service holds, ``copying`` makes copies and registers them.

Imports errors, config, streams, formats, client and drivers; nothing of ``dqp``. A new operation is a function in
``catalog.operations``, and a line in the table of each interface.

Source: A. Chervenak et al., "Giggle: a framework for constructing scalable replica location services" (SC 2002) and
"Performance and scalability of a replica location service" (HPDC 2004).
"""
