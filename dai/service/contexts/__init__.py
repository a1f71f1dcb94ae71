"""Keeps contexts: the static part of a stream of messages is stored once, and the messages name it by its hash.

A *context* is bytes under their SHA-256: it never changes. A *document* is bytes that change: it has an id of its own
and a version, and whoever replaces it says which version. Both have an owner and a lease, and end with it. A context
may have parents, whose leases last as long as its own.

Both stand in one table of the state database. ``contexts`` has what the interfaces call, ``memory`` holds what
was read last. Knows no HTTP; the interfaces are ``dai/api/routes/contexts``.
"""
