"""The registry of services, their data and its meaning: services publish entries, callers annotate and search them.

An *entry* is a business, a service, a table, a column, a piece of metadata about another entry. Entries form trees,
have an owner and, where wanted, a lease and readers. ``entries`` says what one is, ``database`` keeps them,
``operations`` has what changes them, ``mirror`` holds them in memory, and ``Registry`` (``registry``) puts these
together for the interfaces. ``publisher`` publishes this service in one. ``finding`` ranks what fits a text. ``rdf``
says entries in RDF, and as a catalog; ``sparql`` asks these triples, in a process of its own; ``uddi`` is the interface
of UDDI, ``metadata`` those for metadata and WSDL documents, which see the registry by ``access``; ``webhooks`` sends
changes. The interfaces over HTTP are in ``dai/api/routes/registry``.

Imports errors, config, client, drivers and security; nothing of ``dqp``. A new kind of entry is a line in
``entries.KINDS``, a new operation a function in ``operations``.

Source: UDDI version 2.04 API and data structures (OASIS, 2002); J. Papay et al., "Grimoires: Grid RegIstry with
Metadata Oriented Interface" (2004).
"""
