"""The driver of MariaDB and MySQL, by mysqlclient.

``driver`` is the ``Driver``, ``connection`` opens its connections, ``session`` runs statements on one, ``wire`` reads
answers from a connection's socket. Nothing outside this package imports MySQLdb.
"""
