"""Entries in RDF: ``triples`` in the registry's own vocabulary, ``dcat`` as a catalog that others harvest.
The only place that knows the library of RDF."""
