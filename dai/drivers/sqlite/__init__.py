"""The driver of SQLite, by the standard library. Nothing else but the state store imports sqlite3.

``driver`` is the ``Driver``, over a ``connection``. ADBC reads large results in processes of their own: ``readers`` has
these processes, each forked by ``forks`` and running ``worker``; ``handover`` says when one takes a statement over,
``statement`` and ``alike`` whether it may. ``checks`` refuses what users hardly mean.
"""
