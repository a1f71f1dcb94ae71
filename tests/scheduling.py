"""In which order the files of tests run, and which of them one process runs, where pytest-xdist runs several.

A file's tests run in one process, so that what is shared in a module is loaded once. So do the files of each group of
``TOGETHER``: they share servers that they kill. The longest come first, so that no process is left with one at the end.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FAULTS = "tests/faults/test_"
ONE_SERVER = (
    *("many_users", "slow_reader", "cancel", "database_", "disk_", "service_", "stopped_", "query_tables_"),
    *("transfers", "workers_"),
)
TOGETHER = (
    tuple(FAULTS + name for name in ONE_SERVER),
    (FAULTS,),
)
LONGEST: tuple[str | tuple[str, ...], ...] = (
    TOGETHER[0],
    FAULTS,
    "tests/dqp/test_ray_runtime.py",
    "tests/dqp/dialects/test_whitelists.py",
    "tests/api/test_workers.py",
    "tests/dqp/test_depth.py",
    "tests/api/test_supervisor.py",
    "tests/test_readme.py",
    "tests/drivers/test_conformance.py",
    "tests/conformance/test_corpus.py",
    "tests/dqp/test_tpcds.py",
    "tests/dqp/test_generated.py",
    "tests/dqp/test_changed_tables.py",
    "tests/api/test_schemathesis.py",
    "tests/dqp/test_fragment.py",
    "tests/activities/test_xml.py",
    "tests/drivers/test_files.py",
    "tests/docs/test_pages.py",
    "tests/api/test_stuck.py",
    "tests/activities/test_resuming.py",
    "tests/dqp/dialects/test_statements.py",
    "tests/api/test_identity.py",
    "tests/api/test_frames_client.py",
    "tests/registry/test_webhooks.py",
    "tests/dqp/test_binder.py",
    "tests/dqp/dialects/test_collations.py",
    "tests/activities/test_conformance.py",
    "tests/api/test_streaming.py",
    "tests/api/test_tls.py",
    "tests/api/test_memory.py",
    "tests/demo/test_load.py",
    "tests/api/test_slow_resource.py",
    "tests/dqp/test_service_runtime.py",
    "tests/dqp/test_discovery.py",
    "tests/api/test_jwt.py",
    "tests/test_documentation.py",
    "tests/dqp/rules/test_rules.py",
    "tests/activities/test_delivery_failures.py",
    "tests/dqp/test_notebook.py",
    "tests/dqp/test_one_statement.py",
    "tests/drivers/sqlite/test_",
    "tests/registry/test_uddi_java.py",
    "tests/api/test_statuses.py",
    "tests/dqp/test_turns.py",
    "tests/interop/test_sqlalchemy_suite.py",
)
SERVERS = {"postgres", "mariadb", "mysql", "serve", "shared", "databases"}
"""Fixtures: databases, and the services of tests/api and tests/client."""
STARTS = re.compile(
    r"\b(?:PostgresServer|MariaServer|MySQLServer|ServiceProcess|Popen|background)\("
    r"|from tests\.(?:clusters|faults|servers\.delivery)\b|^pytestmark = .*\bpytest\.mark\.server\b",
    re.MULTILINE,
)


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    return sorted(items, key=lambda item: _rank(item.nodeid.split("::", 1)[0]))


@cache
def _rank(file: str) -> int:
    return next((at for at, names in enumerate(LONGEST) if file.startswith(names)), len(LONGEST))


def needs_server(item: pytest.Item) -> bool:
    """Whether the test has a fixture of a server, asks for one by the name in a parameter, or stands in a file that
    starts servers or processes of its own."""
    if starts_servers(item.path):
        return True
    names = item.fixturenames if isinstance(item, pytest.Function) else ()
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    by_name = "request" in names and any(str(each).startswith(tuple(SERVERS)) for each in parameters)
    return by_name or not SERVERS.isdisjoint(names)


@cache
def starts_servers(path: Path) -> bool:
    return "faults" in path.parts or STARTS.search(path.read_text()) is not None


def by_file(config: pytest.Config, log: Any) -> Any:
    """A scheduler that hands out a file at a time, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((each[0] for each in TOGETHER if nodeid.startswith(each)), nodeid.split("::", 1)[0])

    config.option.loadscopereorder = False
    return ByFile(config, log)
