import base64
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path

import httpx
import pytest

from dai.__main__ import main, parser
from dai.client import connect
from dai.client.documents import input_streams
from dai.client.results.table import cut, lines, width
from dai.client.testing import Scripted, ScriptedServer
from dai.commands import FAILED, INTERRUPTED, OK, USAGE
from dai.formats import media_type
from tests.client.replies import DATA, arrow, problem, said
from tests.processes import ServiceProcess

CSV = Scripted(body=b"id,name\r\n1,a\r\n", headers={"Content-Type": "text/csv"})


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether standard output is a terminal."""

    def pretend(it_is: bool) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: it_is, raising=False)

    return pretend


def test_a_query_as_a_table(capsys, terminal) -> None:
    terminal(True)
    with ScriptedServer(DATA, arrow()) as server:
        assert main(["query", f"{server.url}/data", "select ?, ?, ?", "5", "x", '"5"']) == OK
        assert json.loads(server.requests[-1].body)["parameters"] == [5, "x", "5"]
    said, told = capsys.readouterr()
    shown = said.splitlines()
    assert shown[0] == "id  name"
    assert shown[1] == "──  ──────"
    assert shown[2] == " 0  NULL"
    assert shown[3] == " 1  <b>1&"
    assert shown[-1] == "(25 rows)"
    assert told == ""


def test_the_environment_says_the_service(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(DATA, CSV) as server:
        monkeypatch.setenv("DAI_SERVER", server.url)
        assert main(["query", "data", "select 1", "--format", "csv"]) == OK
    assert capsys.readouterr().out.splitlines() == ["id,name", "1,a"]


def test_parameters_of_a_query_by_name(capsys) -> None:
    with ScriptedServer(DATA, CSV) as server:
        named = ["-p", "ids=[1, null]", "-p", "name=x=y", "-p", 'text="5"']
        assert main(["query", "data", "select", *named, "--server", server.url]) == OK
        assert json.loads(server.requests[-1].body)["parameters"] == {"ids": [1, None], "name": "x=y", "text": "5"}
        with pytest.raises(SystemExit):
            main(["query", "data", "select", "-p", "7"])


def test_of_a_long_result_the_first_rows(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.commands.output.SHOWN", 3)
    with ScriptedServer(DATA, arrow(), DATA, arrow(held=True)) as server:
        arguments = ["query", "data", "select 1", "--server", server.url, "--format", "table"]
        assert main(arguments) == OK
        assert capsys.readouterr().out.splitlines()[-1].startswith("(the first 3 of 25 rows")
        monkeypatch.setattr("dai.commands.output.COUNTED", 5)
        assert main(arguments) == OK
        assert "more than 5 rows; the rest was not read" in capsys.readouterr().out
        # What is not read is not computed either.
        assert server.abandoned.wait(60)


def test_in_a_pipe_csv(capsysbinary) -> None:
    with ScriptedServer(DATA, CSV) as server:
        assert main(["query", "data", "select 1", "--server", server.url]) == OK
        assert server.requests[-1].headers["accept"] == "text/csv"
    assert capsysbinary.readouterr().out == b"id,name\r\n1,a\r\n"


@pytest.mark.parametrize(("suffix", "form"), [("xml", "webrowset"), ("parquet", "parquet"), ("jsonl", "json")])
def test_into_a_file(tmp_path: Path, capsys, suffix: str, form: str) -> None:
    path = tmp_path / f"result.{suffix}"
    with ScriptedServer(DATA, Scripted(body=b"data", headers={"Content-Type": media_type(form)})) as server:
        assert main(["query", f"{server.url}/data", "select 1", "--output", str(path), "--blocksize", "7"]) == OK
        assert server.requests[-1].headers["accept"] == media_type(form)
        assert json.loads(server.requests[-1].body)["blocksize"] == 7
    assert path.read_bytes() == b"data"
    assert capsys.readouterr().err.endswith("4 bytes\n")


def test_binary_forms_do_not_spoil_a_terminal(capsys, terminal) -> None:
    terminal(True)
    assert main(["query", "http://127.0.0.1:1/data", "select 1", "--format", "arrow"]) == USAGE
    assert "binary" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["querry"],
        ["query", "data"],
        ["query", "data", "select 1", "--format", "xls"],
        ["jobs", "1", "--abort", "--delete"],
    ],
)
def test_wrong_usage_of_the_line(capsys, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == USAGE
    assert "usage: dai" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "wrong", "says"),
    [
        (
            "query data 1 --blocksize",
            ("0", "-1", "x", "1.5", "²", "9" * 5000),
            "is not a whole number (1 to 1,000,000)",
        ),
        ("serve --port", ("65536", "http", ""), "is not a port (0 to 65,535)"),
        ("serve --workers", ("0", "65", "two"), "is not a number of processes (1 to 64)"),
        ("tokens create alice --days", ("0", "100000", "ever"), "is not a number of days (1 to "),
    ],
)
def test_numbers_of_the_line_have_bounds(capsys, option: str, wrong: tuple[str, ...], says: str) -> None:
    for each in wrong:
        with pytest.raises(SystemExit) as caught:
            main([*option.split(), each])
        assert caught.value.code == USAGE
        assert f"{each!r} {says}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["query", "data", "select 1", "--output", "result.xyz"], "does not tell the format"),
        (["query", "data", "select 1", "--output", "result"], "does not tell the format"),
        (["query", "data", "select 1", "--output", "a.csv", "--format", "table"], "first rows only"),
        (["perform", "/nowhere.xml"], "cannot be read: No such file"),
        (["perform", "http://127.0.0.1:1/lab"], "dai perform ADDRESS FILE"),
        (["jobs", "--abort"], "Give the id of the job"),
        ([], "serve       run the data service"),
        (["serve", "sqlite:///x.db", "--config", "dai.toml"], "cannot be used together"),
        (["serve"], "There is no dai.toml here"),
        (["check-config", "nowhere.toml"], "cannot be read"),
    ],
)
def test_wrong_usage_is_told(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == USAGE
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_errors_are_told_without_a_traceback(capsys) -> None:
    refused = problem(
        400, type="sql-error", detail="no such table: bok", excerpt="line 1: select * from bok\n" + " " * 22 + "^"
    )
    with ScriptedServer(DATA, refused) as server:
        assert main(["query", f"{server.url}/data", "select * from bok"]) == FAILED
    assert capsys.readouterr().err.splitlines() == [
        "dai: no such table: bok",
        "     line 1: select * from bok",
        "     " + " " * 22 + "^",
    ]


def test_an_interrupt_has_its_exit_code(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dai.commands.ask.connect", interrupted)
    assert main(["query", "data", "select 1"]) == INTERRUPTED
    assert capsys.readouterr().err == "dai: interrupted\n"


RESPONSE = (
    b'<gridDataServiceResponse xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">'
    b'<result name="rows"><![CDATA[id\n1\n]]>%b</result><request id="7" status="%b"/></gridDataServiceResponse>'
)
ERROR = b'<error id="sql-error" activity="q">division by zero</error>'


def performed(error: bytes = b"", status: int = 200) -> Scripted:
    body = RESPONSE % (error, b"ERROR" if error else b"COMPLETED")
    headers = {"Content-Type": "application/xml"} | ({"Location": "/jobs/9"} if status == 202 else {})
    return Scripted(status, [body[:100], body[100:]], headers)


def test_performing_a_document(tmp_path: Path, capsysbinary, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "perform.xml"
    document.write_bytes(b"<perform/>")
    answer = tmp_path / "response.xml"
    with ScriptedServer(
        DATA, performed(), DATA, performed(), DATA, performed(ERROR), DATA, performed(status=202)
    ) as server:
        at = ["--resource", f"{server.url}/data"]
        assert main(["perform", str(document), *at]) == OK
        assert server.requests[-1].body == b"<perform/>"
        assert capsysbinary.readouterr().out == RESPONSE % (b"", b"COMPLETED")
        assert main(["perform", str(document), *at, "--output", str(answer)]) == OK
        assert answer.read_bytes() == RESPONSE % (b"", b"COMPLETED")
        assert main(["perform", str(document), *at]) == FAILED
        assert b"dai: division by zero" in capsysbinary.readouterr().err
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"<outputStream/>")))
        assert main(["perform", "-", *at]) == OK
        assert server.requests[-1].body == b"<outputStream/>"
        assert b"dai jobs 9 --wait" in capsysbinary.readouterr().err
        assert main(["perform", str(document), *at, "--format", "csv"]) == USAGE


def test_a_document_that_only_delivers_is_waited_for(tmp_path: Path, capsysbinary) -> None:
    document = tmp_path / "perform.xml"
    document.write_bytes(b"<perform/>")
    accepted = Scripted(202, RESPONSE % (b"", b"PROCESSING"), {"Location": "/jobs/9"})
    failed = said({"phase": "ERROR", "error": {"type": "denied", "detail": "It may not deliver there."}})
    with ScriptedServer(DATA, accepted, said({"phase": "COMPLETED"}), DATA, accepted, failed) as server:
        arguments = ["perform", str(document), "--resource", f"{server.url}/data"]
        assert main(arguments) == OK
        assert capsysbinary.readouterr() == (RESPONSE % (b"", b"COMPLETED"), b"")
        assert main(arguments) == FAILED
        assert b"dai: It may not deliver there." in capsysbinary.readouterr().err


def test_a_response_is_shown_as_it_arrives(tmp_path: Path) -> None:
    document = tmp_path / "perform.xml"
    document.write_bytes(b"<perform/>")
    begun = Scripted(200, [RESPONSE[:100]], {"Content-Type": "application/xml"}, held=True)
    with ScriptedServer(DATA, begun) as server:
        arguments = ["perform", str(document), "--resource", f"{server.url}/data"]
        with subprocess.Popen([sys.executable, "-m", "dai", *arguments], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout.read(100) == RESPONSE[:100]
                assert process.poll() is None
            finally:
                process.kill()


PUSHED = b"""<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">
<inputStream name="in"><toLocal name="up"/></inputStream></gridDataServicePerform>"""


def test_a_document_that_waits_says_for_what(tmp_path: Path) -> None:
    path = tmp_path / "perform.xml"
    path.write_bytes(PUSHED)
    sqlite3.connect(tmp_path / "empty.db").close()
    running = ServiceProcess(tmp_path, {"data": f"sqlite:///{tmp_path / 'empty.db'}"}).start()
    try:
        command = [sys.executable, "-m", "dai", "perform", str(path), "--server", running.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            match = re.fullmatch(r"Session (\S+) waits for what is pushed into: in\n", process.stderr.readline())
            assert match is not None
            data = connect(f"{running.url}/data")
            data.session(id=match[1]).push("in", [b"pushed from elsewhere"])
            data.close()
            assert base64.b64encode(b"pushed from elsewhere").decode() in process.communicate(timeout=60)[0]
            assert process.returncode == OK
        assert httpx.get(f"{running.url}/sessions/{match[1]}", timeout=60).status_code == 404
    finally:
        running.stop()


def test_the_session_of_a_document_that_waits_ends_unless_a_job_goes_on(tmp_path: Path, capsys) -> None:
    path = tmp_path / "perform.xml"
    path.write_bytes(PUSHED)
    made = said({"id": "s1"}, 201)
    with ScriptedServer(DATA, made, arrow(), Scripted(204), DATA, made, performed(status=202)) as server:
        arguments = ["perform", str(path), "--resource", f"{server.url}/data"]
        assert main([*arguments, "--end-point", "up", "--format", "table"]) == OK
        assert "session=s1" in server.requests[2].target
        assert (server.requests[-1].method, server.requests[-1].target) == ("DELETE", "/sessions/s1")
        assert main(arguments) == OK
        assert server.requests[-1].method == "POST"
        assert "session=s1" in server.requests[-1].target
    assert capsys.readouterr().err.count("Session s1 waits for what is pushed into: in\n") == 2


def test_a_document_that_joins_a_session_itself() -> None:
    assert input_streams(PUSHED) == ["in"]
    assert input_streams(PUSHED.replace(b"<inputStream", b'<session id="s1"/><inputStream')) == []
    assert input_streams(b"<broken") == []


def test_performing_for_one_end_point(tmp_path: Path, capsys) -> None:
    document = tmp_path / "perform.xml"
    document.write_bytes(b"<perform/>")
    resources = said({"resources": [{"name": "data"}]})
    with ScriptedServer(resources, DATA, arrow()) as server:
        # One resource needs no name.
        options = ["--server", server.url, "--end-point", "rows", "--format", "table"]
        assert main(["perform", str(document), *options]) == OK
        assert server.requests[-1].target == "/resources/data/perform?output=rows"
    assert capsys.readouterr().out.splitlines()[-1] == "(25 rows)"


@pytest.mark.parametrize("words", [["{}", "FILE"], ["FILE", "--resource", "{}"], ["--resource", "{}", "FILE"]])
def test_the_resource_of_a_document(tmp_path: Path, capsys, words: list[str]) -> None:
    """In the order of ``dai query``, or as an option."""
    document = tmp_path / "perform.xml"
    document.write_bytes(b"<perform/>")
    with ScriptedServer(DATA, arrow()) as server:
        said = [str(document) if each == "FILE" else each.format(f"{server.url}/data") for each in words]
        assert main(["perform", *said, "--end-point", "rows", "--format", "table"]) == OK
        assert server.requests[-1].target == "/resources/data/perform?output=rows"
    assert capsys.readouterr().out.splitlines()[-1] == "(25 rows)"


def test_performing_as_a_job(tmp_path: Path, capsys) -> None:
    document = tmp_path / "perform.xml"
    document.write_bytes(b"<perform/>")
    with ScriptedServer(DATA, performed(status=202)) as server:
        assert main(["perform", str(document), "--resource", f"{server.url}/data", "--async"]) == OK
        assert server.requests[-1].headers["prefer"] == "respond-async"
    assert capsys.readouterr().out == "9\n"


def test_resources_and_their_tables(capsys) -> None:
    listed = said({"resources": [{"name": "book", "product": "SQLite 3.50"}, {"name": "lab"}]})
    schema = said({"tables": [{"name": "littleblackbook", "columns": [{"name": "id", "type": "integer"}]}]})
    with ScriptedServer(listed, DATA, schema) as server:
        assert main(["resources", "--server", server.url]) == OK
        assert "book  SQLite 3.50" in capsys.readouterr().out
        assert main(["resources", "book", "--server", server.url]) == OK
        assert capsys.readouterr().out == "littleblackbook: id integer\n"


def test_jobs(capsys) -> None:
    of = {"id": "17", "resource": "lab", "activities": []}
    running = of | {"phase": "EXECUTING", "activities": [{"activity": "q", "rows": 12345, "seconds": 0.5}]}
    failed = of | {"phase": "ERROR", "error": {"type": "sql-error", "detail": "division by zero"}}
    done = of | {"phase": "COMPLETED", "outputs": [{"name": "rows"}]}
    at = ["--server"]
    with ScriptedServer(said({"jobs": [running]})) as server:
        assert main(["jobs", *at, server.url]) == OK
        assert "17   EXECUTING" in capsys.readouterr().out
    with ScriptedServer(said(running)) as server:
        assert main(["jobs", "17", *at, server.url]) == OK
        assert "12,345" in capsys.readouterr().out
    with ScriptedServer(said(running), said(failed)) as server:
        assert main(["jobs", "17", "--wait", *at, server.url]) == FAILED
        assert "division by zero" in capsys.readouterr().out
    with ScriptedServer(said(done), said(done), CSV) as server:
        assert main(["jobs", "17", "--result", *at, server.url]) == OK
        assert server.requests[-1].target == "/jobs/17/outputs/rows"
        capsys.readouterr()
    with ScriptedServer(said(done | {"owner": "alice"})) as server:
        assert main(["jobs", "17", *at, server.url]) == OK
        assert capsys.readouterr().out == (
            "job      17\nphase    COMPLETED\nresource lab\nowner    alice\noutputs  rows\n"
        )
    with ScriptedServer(said(running), Scripted(204)) as server:
        assert main(["jobs", "17", "--delete", *at, server.url]) == OK
        assert server.requests[-1].method == "DELETE"
    with ScriptedServer(said(running), Scripted(204), said(of | {"phase": "ABORTED"})) as server:
        assert main(["jobs", "17", "--abort", *at, server.url]) == OK
        assert [(each.method, each.target, each.body) for each in server.requests[1:2]] == [
            ("POST", "/jobs/17/phase", b"PHASE=ABORT")
        ]


def test_check_config_connects(tmp_path: Path, capsys) -> None:
    good = tmp_path / "good.toml"
    good.write_text('[resources.book]\nurl = "sqlite:///book.db"\n')
    (tmp_path / "book.db").touch()
    assert main(["check-config", str(good)]) == OK
    out = capsys.readouterr().out
    assert "book: SQLite" in out
    assert "book: may be read by *, anonymous; written by nobody\n" in out
    granted = tmp_path / "granted.toml"
    granted.write_text(good.read_text() + '[policy]\nread = ["group:lab"]\nwrite = ["alice", "bob"]\n')
    assert main(["check-config", str(granted)]) == OK
    assert "book: may be read by group:lab; written by alice, bob\n" in capsys.readouterr().out
    (tmp_path / "birds.csv").write_text("id,name\n1,wren\n")
    granted.write_text('[resources.birds]\nfiles = "birds.csv"\n[policy]\nwrite = ["alice"]\n')
    assert main(["check-config", str(granted)]) == OK
    assert "birds: may be read by *, anonymous; written by nobody\n" in capsys.readouterr().out
    bad = tmp_path / "bad.toml"
    bad.write_text('[resources.lab]\nurl = "postgresql://127.0.0.1:1/lab"\nconnect_wait = 0.5\npool_wait = 0.5\n')
    assert main(["check-config", str(bad)]) == FAILED
    assert "lab: " in capsys.readouterr().out
    federated = tmp_path / "federated.toml"
    sources = '[[federations.lab.sources]]\nalias = "a"\nresource = "book"\n'
    away = '[[federations.lab.sources]]\nalias = "b"\nurl = "http://127.0.0.1:9/x"\n'
    federated.write_text(good.read_text() + sources + away)
    assert main(["check-config", str(federated)]) == OK
    assert "lab: dqp federation of 2 sources, away: b, answers in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[service]\nhost = "0.0.0.0"\n', "callers are not identified"),
        ('[service]\nhost = "nowhere.invalid"\n[identity]\nanonymous = true\n', "cannot listen on nowhere.invalid"),
        ('[identity]\nmethods = ["tokens"]\n', "there is no method 'tokens'"),
        ('[service]\nstate = "postgresql://me:sesame@127.0.0.1:1/x"\n', "Check service.state: host 127.0.0.1, port 1"),
        ('[service]\nstate = "sqlite:///dai.toml"\n', "file is not a database"),
        ('[service]\nresults_directory = "dai.toml/results"\n', "service.results_directory"),
        ('[audit]\nfile = "nowhere/audit.jsonl"\n', "audit file (audit.file) cannot be written: No such file"),
        ('[audit]\nfile = "dai.toml/audit.jsonl"\n', "audit file (audit.file) cannot be written: Not a directory"),
        ('[replicas]\ncatalog = "postgresql://me:sesame@127.0.0.1:1/x"\n', "Check replicas.catalog: host 127.0.0.1"),
        ('[replicas]\ncatalog = "sqlite:///dai.toml"\n', "catalog (replicas.catalog) cannot be opened: file is not a"),
        ('[replicas]\nacl = ["(: all"]\n', "replicas.acl: '(' is not a regular expression"),
        ('[registry]\nstore = "postgresql://me:sesame@127.0.0.1:1/x"\n', "Check registry.store: host 127.0.0.1"),
        ('[registry]\nstore = "sqlite:///dai.toml"\n', "registry (registry.store) cannot be opened: file is not a"),
    ],
)
def test_check_config_says_why_serve_would_refuse(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    """All of it, and serve says it before it listens."""
    monkeypatch.chdir(tmp_path)
    Path("dai.toml").write_text(text + '[service.tls]\ncertificate = "nowhere.pem"\n')
    assert main(["check-config"]) == FAILED
    out = capsys.readouterr().out
    assert says in out
    assert f"[service.tls]: the file {tmp_path}/nowhere.pem cannot be used: No such file" in out
    assert "sesame" not in out
    assert os.listdir() == ["dai.toml"]
    Path("dai.toml").write_text(text)
    monkeypatch.setattr("dai.api.server.start.configure", lambda: None)
    monkeypatch.setattr("dai.api.server.start.possible_workers", lambda config: pytest.fail("it serves"))
    assert main(["serve", "--port", "0"]) == USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("database", ["sqlite", "duckdb"])
def test_check_config_says_what_is_wrong_in_a_database(tmp_path: Path, capsys, database: str) -> None:
    with closing(import_module(f"{database}{'3' if database == 'sqlite' else ''}").connect(tmp_path / "x.db")) as made:
        for sql in ("people (id int)", "gone (id int)"):
            made.execute(f"create table {sql}")
        made.execute("create view old as select * from gone")
        made.execute("drop table gone")
    (tmp_path / "dai.toml").write_text(
        f'[resources.lab]\nurl = "{database}:///x.db"\n'
        '[resources.lab.columns]\n"people.id" = {unit = "m"}\n"people.nope" = {unit = "m"}\n"old.id" = {unit = "m"}\n'
    )
    assert main(["check-config", str(tmp_path / "dai.toml")]) == FAILED
    said = [line for line in capsys.readouterr().out.splitlines() if "lab: " in line][1:-1]
    assert len(said) == 2
    assert "'old' cannot be read: " in said[0]
    assert "gone" in said[0]
    assert "lab: columns.\"people.nope\": there is no such column. Did you mean 'people.id'?" in said[1]


def test_the_schema_of_documents(capsysbinary, tmp_path: Path) -> None:
    from dai.perform.parser import xsd

    assert main(["schemas"]) == OK
    assert capsysbinary.readouterr().out == xsd()
    assert main(["schemas", "--check", "--directory", str(tmp_path)]) == FAILED
    assert b"perform.xsd is stale" in capsysbinary.readouterr().err
    assert main(["schemas", "--write", "--directory", str(tmp_path)]) == OK
    assert (tmp_path / "schemas/perform.xsd").read_bytes() == xsd()
    assert main(["schemas", "--check", "--directory", str(tmp_path)]) == OK


def test_generated_files_are_fresh() -> None:
    root = Path(__file__).parent.parent
    assert main(["schemas", "--check", "--directory", str(root)]) == OK


def test_every_command_has_help() -> None:
    [commands] = [action for action in parser()._actions if hasattr(action, "choices") and action.choices]
    assert {each.dest for each in commands._choices_actions} == set(commands.choices)
    assert all(each.help for each in commands._choices_actions)


def test_a_reader_that_has_seen_enough() -> None:
    with ScriptedServer(DATA, Scripted(body=[b"x" * 100_000] * 100, headers={"Content-Type": "text/csv"})) as server:
        code = f"import sys; from dai.__main__ import main; sys.exit(main(['query', '{server.url}/data', 'select 1']))"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.read(10) == b"x" * 10
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait() == FAILED


def test_tables_fit_their_terminal() -> None:
    rows = [["1", "a long text that does not fit"], ["22", "日本語日本語日本語日本語"]]
    shown = list(lines(["id", "name"], rows, right=[0], columns=20))
    assert all(width(line) <= 20 for line in shown)
    assert shown[2] == " 1  a long text tha…"
    assert width("日本") == 4
    assert width("e\u0301") == 1
    assert cut("日本語", 4) == "日…"
    assert list(lines(["x"], [], columns=0)) == ["x", "─"]
    assert next(lines(["heading"] * 10, [], columns=12)) == "  ".join(["headi…"] * 10)
