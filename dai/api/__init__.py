"""The HTTP API: one module a router, each with its table of operations; ``app`` puts them together.

A request, from top to bottom: ``app`` gives it a correlation id and finds its ``Operation``; the operation's handler
checks what was asked (``call``), negotiates the form of the answer (``negotiation``) and gives a ``Reply``, or conducts
a pipeline whose blocks it sends as they come (``streaming``, ``work``). A DaiError on the way becomes a problem
document. The OpenAPI document is written from the same tables (``openapi``).
"""
