"""Files as tables that cannot be read: who says so, and why."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

import dqp
from dai.__main__ import main
from dai.api.server.serve import _tell_if_away, background
from dai.commands import FAILED, OK
from dai.config import data_files, parse
from dai.drivers import driver_for
from dai.errors import StatementError


def test_tables_that_cannot_be_read_say_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In the list of tables, to who checks the configuration, in the log at start, and in a federation."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "good.csv").write_text("k,n\n1,2\n")
    (data / "latin.csv").write_bytes("k,n\n1,Z\xfcrich\n".encode("latin-1"))
    (data / "ragged.csv").write_text("k,n\n1,2\n1,2,3,4\n")
    (data / "broken.parquet").write_bytes(b"PAR1 no table")
    why = {"broken": "'broken.parquet'", "latin": "it is not UTF-8", "ragged": "ragged.csv: line 3 has 4 cells"}
    with closing(driver_for(data_files.url(str(data), "files", tmp_path, "own"))) as driver:
        described = {each.name: each for each in driver.tables()}
        said = driver.unreadable()
    assert said.keys() == why.keys()
    for name, reason in why.items():
        assert reason in said[name]
        assert (described[name].columns, described[name].comment) == ((), said[name])
    config = {"service": {"port": 0, "state": "sqlite://"}, "resources": {"data": {"files": "data"}}}
    (tmp_path / "dai.toml").write_text('[resources.data]\nfiles = "data"\n')
    assert main(["check-config", str(tmp_path / "dai.toml")]) == FAILED
    out = capsys.readouterr().out
    assert all(f"data: {name!r} cannot be read: {text}" in out for name, text in said.items())
    with background(parse(config, tmp_path, {})) as service:
        assert main(["resources", "data", "--server", service.url]) == OK
        assert f"ragged (about 2 rows): {said['ragged']}" in capsys.readouterr().out
        [resource] = service.service.resources.values()
        asyncio.run(_tell_if_away(service.service, resource))
    assert [each.table for each in caplog.records if each.message == "a table of files cannot be read"] == [*said]
    with dqp.connect(str(data)) as lab, pytest.raises(StatementError, match="it is not UTF-8"):
        lab.sql("select * from data.latin").arrow()
