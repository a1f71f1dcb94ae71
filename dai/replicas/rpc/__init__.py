"""The protocol of the original replica location service (``rlsn://host:39281``), for the clients that speak it.

Texts end with a NUL byte. The server greets with the code 0. A request is the name of a method and its arguments; a
list of a bulk method ends with an empty text. A reply is a code, then what went wrong, or the results: a list ends with
an empty text, or with the byte 1 where the limit of the request cut it.

``methods`` is the table of methods, which stand in ``catalog``, ``changes``, ``index`` and ``service``; ``server`` has
the connections. A new method is a function there and a line of ``METHODS``.
"""
