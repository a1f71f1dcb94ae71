"""What a federation knows of its sources: tables, statistics, replicas, views, and whether a source is alive.

``catalog`` is the face; ``validator`` holds the schema in a DuckDB without rows, which says whether a query is valid.
It imports ``dqp.algebra`` and ``dqp.settings``. A new kind of source goes into ``sources``.
"""
