"""The HTTP API: one module a subject in ``routes``; ``app`` puts them together.

A request, from top to bottom: ``monitoring.access`` gives it a correlation id and checks its head, FastAPI finds the
operation; its handler checks the request (``requests``), negotiates the format of the answer and returns it, or runs a
pipeline and sends its blocks as they come (``streaming``, ``work``). A DaiError on the way becomes a problem document
(``problems``).
"""
