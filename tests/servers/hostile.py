"""Settings of servers under which the same statement has another answer, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.servers import Server
from tests.servers.mariadb import MariaServer, MySQLServer
from tests.servers.postgresql import PostgresServer

POSTGRESQL: Mapping[str, str] = {
    "TimeZone": "'Asia/Kolkata'",
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "'sql_standard'",
    "bytea_output": "'escape'",
    "extra_float_digits": "-15",
    "xmlbinary": "'hex'",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "gin_fuzzy_search_limit": "1",
    "search_path": '"$user", public, pg_catalog',
    "default_transaction_isolation": "'serializable'",
    "client_encoding": "'LATIN1'",
}
_ALIKE = {
    "sql_select_limit": "3",
    "sql_auto_is_null": "1",
    "completion_type": "'CHAIN'",
    "div_precision_increment": "0",
    "max_sort_length": "64",
    "default_week_format": "3",
    "lc_time_names": "'de_DE'",
    "time_zone": "'+05:30'",
    "autocommit": "0",
    "group_concat_max_len": "4",
    "character_set_client": "'latin1'",
    "character_set_results": "'latin1'",
    "collation_connection": "'latin1_german2_ci'",
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,PAD_CHAR_TO_FULL_LENGTH,IGNORE_SPACE,"
    "HIGH_NOT_PRECEDENCE,REAL_AS_FLOAT,NO_UNSIGNED_SUBTRACTION'",
}
MARIADB: Mapping[str, str] = {
    **_ALIKE,
    "old_mode": "'ZERO_DATE_TIME_CAST'",
    "default_regex_flags": "'DOTALL,EXTENDED'",
    "system_versioning_asof": "'2001-01-01 00:00:00'",
}
MYSQL: Mapping[str, str] = {**_ALIKE, "default_collation_for_utf8mb4": "'utf8mb4_general_ci'"}


@contextmanager
def hostile(server: Server, database: str) -> Iterator[None]:
    """Whoever connects to the database meets these settings; in MariaDB and MySQL whoever connects to the server."""
    if isinstance(server, PostgresServer):
        for name, value in POSTGRESQL.items():
            server._execute(f'ALTER DATABASE "{database}" SET {name} = {value}')
        yield
        return
    assert isinstance(server, MariaServer)
    settings = MYSQL if isinstance(server, MySQLServer) else MARIADB
    before = {name: server._execute(f"SELECT @@GLOBAL.{name}")[0][0] for name in settings}
    try:
        for name, value in settings.items():
            server._execute(f"SET GLOBAL {name} = {value}")
        yield
    finally:
        for name, value in before.items():
            plain = isinstance(value, int) or value == "DEFAULT"
            server._execute(f"SET GLOBAL {name} = {value}" if plain else f"SET GLOBAL {name} = '{value}'")
