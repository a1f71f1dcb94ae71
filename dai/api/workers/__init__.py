"""Several processes that are one service: how they find each other's requests, and their shared state.

The supervisor (``dai.api.server.supervisor``) accepts connections and hands each to the worker with the fewest. A
session, a job or a resource that only one process can open belongs to one worker; its id or its name says to which
(``member``). A request for it that meets another worker moves there: that worker hands over the connection with what it
has read of the request (``peers``), so no byte of an answer goes through two processes. Limits are counted in a table
in shared memory (``table``), places for requests with it (``admission``). Counters are files that outlive their worker;
what else is asked of all workers they ask each other.

The package is below ``dai.api.service``.
"""
