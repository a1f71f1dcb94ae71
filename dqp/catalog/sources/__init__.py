"""The sources of a federation: resources of data services over HTTP, and databases through drivers in this process.

``source`` says what a source is, ``service`` and ``local`` are the kinds, ``configured`` makes them from the settings.
Streams of sources have types that DuckDB reads (``types.readable``). A new kind of source is a class that is a
``Source`` and a case of ``sources_of``.
"""
