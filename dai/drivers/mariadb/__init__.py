"""The driver of MariaDB and MySQL, by mysqlclient.

``driver`` is the ``Driver``, ``wire`` reads answers from the connection's socket. Nothing outside this package imports
MySQLdb.
"""
