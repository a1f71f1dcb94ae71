"""SPARQL 1.1 queries over the entries of a registry (``rdf.triples``), in a process of its own (``worker``).

That process follows the registry's database and holds the triples in memory. For each query it forks: the copy answers
and ends, by itself or at its limits of time and memory, and the others know nothing of it. It can open no file and no
connection, so a query reaches nothing else. ``Queries`` (``process``) is the service's end.
"""
