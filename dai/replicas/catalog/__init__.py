"""The local replica catalog: mappings of logical names to targets, and the attributes of both, in a database.

``Catalog`` reads; ``writer`` carries out changes in groups, in a thread of its own; ``operations`` has what changes the
catalog, functions over a transaction; ``database`` the connections, ``redo`` what is durable and not committed yet.
"""
