"""The state database: what outlives the process, in SQLite by default. SQLAlchemy Core, no ORM.

``database`` opens it and has its transactions; ``file`` watches the file of a SQLite database; ``tables`` are those of
the service itself; ``lease`` lets one process at a time have a service's name; ``store`` reads and writes jobs, tokens
and counts of bytes. Each write is one transaction. Several services may share one database: each sees only the rows of
its own name.

What belongs here reads or writes these tables, or is needed for that. What is kept beside them has its tables in its
own package and adds them (``Store.add_tables``); results are files (``dai.service.results``).
"""
