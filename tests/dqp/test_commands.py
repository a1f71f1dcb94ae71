"""``dqp query``, ``dqp explain`` and ``dqp tables``, of a file and of a service."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from dai.api.server.serve import background
from dai.commands import FAILED, INTERRUPTED, OK, USAGE
from dai.config import parse
from dai.formats import format_named
from dqp.__main__ import main
from examples.demo.load import load
from tests.processes import SECONDS, until

JOINED = """select i."interactionType" as kind, count(*) as n
from lite.protein_interaction i join duck.protein_goterm g on i."ORF1" = g."ORF"
where i.repeats > $least group by all order by n desc"""
FIRST = [["Y2H", 909], ["HMS", 870]]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("proteins")
    urls = {"lite": f"sqlite:///{place}/lite.db", "duck": f"duckdb:///{place}/duck.db"}
    load(urls["lite"], ["protein_interaction"])
    load(urls["duck"], ["protein_goterm"])
    return urls


@pytest.fixture(scope="module", params=["file", "service"])
def federation(
    request: pytest.FixtureRequest, urls: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    place = tmp_path_factory.mktemp("federation")
    if request.param == "file":
        sources = "".join(f'{alias} = "{url}"\n' for alias, url in urls.items())
        (place / "federation.toml").write_text(f"[sources]\n{sources}")
        yield str(place / "federation.toml")
        return
    document: dict[str, Any] = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "resources": {name: {"url": url} for name, url in urls.items()},
        "federations": {"lab": {"sources": [{"alias": alias, "resource": alias} for alias in urls]}},
    }
    with background(parse(document, place, {})) as running:
        yield f"{running.url}/lab"


@pytest.mark.parametrize("form", ["csv", "json", "table", "arrow", "parquet", "webrowset"])
def test_a_query_in_every_form(federation: str, form: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["query", federation, JOINED, "-p", "least=2", "--format", form]) == OK
    out = capsysbinary.readouterr().out
    if form == "table":
        lines = out.decode().splitlines()
        assert lines[0].split() == ["kind", "n"]
        assert [lines[2].split(), lines[-1]] == [["Y2H", "909"], "(5 rows)"]
        return
    table = format_named(form).decode(iter([out])).table()
    assert [[each["kind"], int(each["n"])] for each in table.to_pylist()][:2] == FIRST


def test_into_a_file(federation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.parquet"
    assert main(["query", federation, JOINED, "-p", "least=2", "--output", str(path), "--blocksize", "2"]) == OK
    assert pq.read_table(path)["n"].to_pylist() == [909, 870, 862, 861, 791]
    assert "bytes" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_the_federation_of_the_environment_or_of_the_directory(
    federation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["query", "select 1 as one", "--format", "csv"]) == USAGE
    told = capsys.readouterr().err
    assert "federation.toml cannot be read" in told
    assert "Name a federation.toml" in told
    Path("federation.toml").write_text("[sources]")
    assert main(["query", "select 1 as one", "--format", "csv"]) == OK
    monkeypatch.setenv("DQP_FEDERATION", federation)
    assert main(["query", "select count(*) > 0 as found from lite.protein_interaction", "--format", "csv"]) == OK
    assert capsys.readouterr().out.split() == ["one", "1", "found", "true"]
    assert main(["tables"]) == OK
    assert "lite.protein_interaction" in capsys.readouterr().out


def test_a_plan_is_shown_and_drawn(federation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.svg"
    assert main(["explain", federation, JOINED, "-p", "least=2", "--svg", str(path)]) == OK
    assert "Remote" in capsys.readouterr().out
    assert ET.parse(path).getroot().tag.endswith("svg")


def test_values_of_parameters(federation: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select $a as a, $b as b, $c as c, $d is null as d, 3 in $e as e"
    given = ["-p", "a=1", "-p", "b=it's", "-p", 'c="1"', "-p", "d=null", "-p", "e=[1, 2, 3]"]
    assert main(["query", federation, sql, *given, "--format", "json"]) == OK
    assert json.loads(capsys.readouterr().out) == {"a": 1, "b": "it's", "c": "1", "d": True, "e": True}


def test_the_statement_from_standard_input(
    federation: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("select 41 + 1 as answer"))
    assert main(["query", federation, "-"]) == OK
    assert capsys.readouterr().out.split() == ["answer", "42"]


@pytest.mark.parametrize("analyze", [[], ["--analyze"]])
def test_plans(federation: str, analyze: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", federation, JOINED, "-p", "least=2", *analyze]
    assert main(arguments) == OK
    text = capsys.readouterr().out
    assert "Remote lite (sqlite)" in text
    assert ("actual 5 rows" in text) == bool(analyze)
    assert main([*arguments, "--format", "json"]) == OK
    plan = json.loads(capsys.readouterr().out)
    assert plan["sql"] == JOINED
    assert ("fragments" in plan) == bool(analyze)
    assert main([*arguments, "--output", str(tmp_path / "plan.svg")]) == OK
    assert ET.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")


def test_tables(federation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", federation]) == OK
    out = capsys.readouterr().out
    assert "lite.protein_interaction   4,716  ORF1, ORF2" in out
    assert "duck.protein_goterm       16,803" in out


def test_what_is_wrong_is_said_beside_the_tables(
    urls: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(
        f"""[sources]\nlite = "{urls["lite"]}"\naway = "http://127.0.0.1:1/resources/x"
        [replicas]\n"lite.protein_interactoin" = ["away.x"]
        [views]\nbusy = "from lite.protein_interaction"\nbroken = "select nix from busy" """
    )
    assert main(["tables", str(path)]) == OK
    out, err = capsys.readouterr()
    assert [each.split()[0] for each in out.splitlines()[2:]] == ["lite.protein_interaction", "busy"]
    assert "away is away: " in err
    assert (
        'replicas."lite.protein_interactoin": There is no table lite.protein_interactoin. '
        "Did you mean 'lite.protein_interaction'?\n" in err
    )
    assert "broken: The view 'broken' is wrong: There is no column 'nix' in busy" in err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["query", "{}", "select nmae\nfrom duck.protein_goterm"], FAILED, "line 1: select nmae"),
        (["query", "{}", "select $a"], FAILED, "$a has no value"),
        (["query", "{}", "select $a", "-p", "a=1", "-p", "a=2"], USAGE, "given twice"),
        (["query", "nowhere.toml", "select 1"], USAGE, "cannot be read"),
        (["query", "http://127.0.0.1:1/lab", "select 1"], FAILED, "127.0.0.1:1"),
        (["query", "{}", "select 1", "--output", "x.unknown"], USAGE, "does not tell the format"),
        (["query", "{}", "delete from duck.protein_goterm"], FAILED, ""),
    ],
)
def test_mistakes(
    federation: str, arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([each.replace("{}", federation) for each in arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dqp: ")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [["query"], ["query", "f.toml", "select 1", "-p", "a"], ["querry"]])
def test_command_lines_that_are_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == USAGE
    assert "usage: dqp" in capsys.readouterr().err


def test_ctrl_c(postgres_url: str, urls: dict[str, str], tmp_path: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute("create view slow as select 1 as id, pg_sleep(600)::text as s")
        (tmp_path / "federation.toml").write_text(f'[sources]\npg = "{postgres_url}"\nlite = "{urls["lite"]}"\n')
        sql = "select count(*) from pg.slow s join lite.protein_interaction i on s.id = i.repeats"
        process = subprocess.Popen(
            [sys.executable, "-m", "dqp", "query", str(tmp_path / "federation.toml"), sql],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        sleeping = "select count(*) from pg_stat_activity where state = 'active' and wait_event = 'PgSleep'"

        def asleep() -> bool:
            return database.execute(sleeping).fetchone() != (0,)

        try:
            until(lambda: asleep() or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert (process.returncode, out) == (INTERRUPTED, ""), err
        assert err.endswith("dqp: interrupted\n")
        until(lambda: not asleep())
