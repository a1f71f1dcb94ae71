"""The catalog of a federation: tables and statistics of its sources, replicas, views, uploads, and which sources live.

``catalog`` is what other packages use. ``sources`` speaks to the sources; ``reflection`` keeps what they report;
``heartbeat`` notices a lost service; ``validator`` checks queries in a DuckDB with the schema and no rows;
``diagnosis`` writes the errors. The package imports ``dqp.algebra`` and ``dqp.settings``. A new kind of source is a
module in ``sources``.
"""
