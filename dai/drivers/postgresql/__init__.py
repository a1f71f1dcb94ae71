"""The driver of PostgreSQL, by psycopg, ADBC and the connection's socket.

``driver`` is the ``Driver``; ``read``, ``bulk`` and ``rows`` are the three ways to fetch, ``write`` all that changes
data. Nothing outside this package imports psycopg or ADBC's PostgreSQL driver.
"""
