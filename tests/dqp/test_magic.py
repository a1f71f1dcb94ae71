"""%dqp and %%dqp in a shell, and the example notebook in a kernel."""

from __future__ import annotations

import builtins
import ctypes
import io
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

import dqp
from dqp.explain.explanation import Explanation
from dqp.interfaces.lab import Query
from examples.demo.load import load
from tests.processes import until

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)  # a shell sets it, and other libraries look at it
    urls = {name: f"{name}:///{tmp_path}/{name}.db" for name in ("sqlite", "duckdb")}
    for url in urls.values():
        load(url, ["protein_goterm"], 500)
    (tmp_path / "federation.toml").write_text("[sources]\n" + "".join(f'{k[:4]} = "{v}"\n' for k, v in urls.items()))
    interactive_shell = InteractiveShell()
    interactive_shell.user_ns["lab"] = dqp.connect(tmp_path / "federation.toml")
    interactive_shell.user_ns["place"] = tmp_path
    interactive_shell.extension_manager.load_extension("dqp")
    yield interactive_shell
    interactive_shell.user_ns["lab"].close()


JOINED = 'select count(*) as n from sqli.protein_goterm a join duck.protein_goterm b using ("ORF", "GOTermIdentifier")'


def ran(shell: InteractiveShell, code: str) -> Any:
    result = shell.run_cell(code)
    result.raise_error()
    return result.result


def failed(shell: InteractiveShell, code: str) -> str:
    """What is printed of a cell that fails."""
    told = io.StringIO()
    with redirect_stdout(told):
        result = shell.run_cell(code)
    assert not result.success
    return told.getvalue()


def test_a_cell(shell: InteractiveShell) -> None:
    shell.user_ns["most"] = 250
    sql = JOINED + '\nwhere a."ORF" <> \'costs $5\' and length(a."ORF") < $most'
    actual = ran(shell, f"%%dqp lab kept\n{sql}")
    assert isinstance(actual, Query)
    assert shell.user_ns["kept"] is actual
    assert repr(actual).endswith("1 row>")
    assert actual.arrow().to_pylist() == [{"n": 500}]
    assert ran(shell, f"%dqp lab {JOINED}").arrow().to_pylist() == [{"n": 500}]


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("$text", "x' or 'y"),
        ("$number", 3),
        ("{'c': 1 + 1}", '{"c":2}'),
        ("'{number} $5'", "{number} $5"),
        ("$text || '{number}'", "x' or 'y{number}"),
    ],
)
def test_a_line_has_the_same_parameters(shell: InteractiveShell, item: str, value: Any) -> None:
    """One in a line: the notebook leaves all of it as it is where it cannot replace something."""
    shell.user_ns.update(text="x' or 'y", number=3)
    assert ran(shell, f"%dqp lab select {item} as v").arrow()["v"].to_pylist() == [value]


def test_a_file_in_place_of_a_variable(shell: InteractiveShell) -> None:
    path = shell.user_ns["place"] / "federation.toml"
    for _ in range(2):
        assert ran(shell, f"%%dqp {path} kept\n{JOINED}").arrow().num_rows == 1
    (magics,) = {each.__self__ for each in [shell.find_cell_magic("dqp")]}
    magics._opened[str(path)].close()


def test_plans(shell: InteractiveShell) -> None:
    actual = ran(shell, f"%%dqp lab --explain\n{JOINED}")
    assert isinstance(actual, Explanation)
    assert actual.root.actual is None
    actual = ran(shell, f"%%dqp lab plan --analyze\n{JOINED}")
    assert actual.root.actual is not None
    assert shell.user_ns["plan"] is actual


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("%%dqp lab\nselect nmae\nfrom duck.protein_goterm", "line 1: select nmae\n               ^"),
        ("%%dqp lab\nselect $missing", "$missing has no value"),
        ("%%dqp lba\nselect 1", "Did you mean 'lab'?"),
        ("%%dqp place\nselect 1", "not a federation"),
        ("%%dqp lab a b\nselect 1", "does not understand"),
        ("%%dqp lab --explian\nselect 1", "does not understand"),
        ("%%dqp\nselect 1", "needs a federation"),
        ("%dqp lab", "needs a federation"),
    ],
)
def test_mistakes_have_no_traceback(shell: InteractiveShell, code: str, says: str) -> None:
    told = failed(shell, code)
    assert says in told
    assert "Traceback" not in told
    assert "dqp/interfaces/magic.py" not in told


def test_results_take_what_streams_arrow(shell: InteractiveShell) -> None:
    assert pa.table(ran(shell, f"%dqp lab {JOINED}")).to_pylist() == [{"n": 500}]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("%%dqp la", "lab"),
        ("%%dqp lab\nselect * from du", "duck"),
        ("%%dqp lab kept\nselect * from duck.prot", "duck.protein_goterm"),
        ("%%dqp lab\nselect g.\x00\nfrom duck.protein_goterm as g", "g.ORF"),
        ("%%dqp lab\nselect count(*) from duck.protein_goterm where or", "ORF"),
        ("%%dqp lab\nselect regexp_ma", "regexp_matches"),
        ("%dqp lab select * from sql", "sqli"),
        ("lab.du", "lab.duck"),
        ("x = lab.duck.pro", "lab.duck.protein_goterm"),
        ("lab.duck.protein_goterm.GO", "lab.duck.protein_goterm.GOTermIdentifier"),
        ("lab.upl", "lab.upload"),
    ],
)
def test_completion(shell: InteractiveShell, code: str, expected: str) -> None:
    before, _, behind = code.partition("\x00")
    with provisionalcompleter():
        found = list(shell.Completer.completions(before + behind, len(before)))
    words = {before[: each.start] + each.text for each in found}
    assert any(each.endswith(expected) for each in words), words


def test_ctrl_c_stops_the_query_of_a_cell(shell: InteractiveShell) -> None:
    lab = shell.user_ns["lab"]

    waiting = ctypes.c_ulong(threading.get_ident())  # perhaps not the main thread, which alone gets signals

    def reads() -> bool:  # before, the new thread has the number of the one that starts it
        return any(each.name == "dqp-query" and each.is_alive() for each in threading.enumerate())

    def press() -> None:
        until(reads)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(waiting, ctypes.py_object(KeyboardInterrupt))

    thread = threading.Thread(target=press)
    thread.start()
    told = failed(shell, "%%dqp lab\nselect count(*) from range(1_000_000_000_000) t(i) where i % 7 = 3")
    thread.join()
    assert told.splitlines()[-1] == "Interrupted: the query and its statements in the databases were stopped."
    assert len(told.splitlines()) <= 3, told
    assert not lab._running
    assert ran(shell, f"%dqp lab {JOINED}").rows() == [(500,)]


def test_a_mistake_in_a_cell_of_python_has_a_short_traceback(shell: InteractiveShell) -> None:
    told = failed(shell, 'a = 1\nlab.sql("select nmae from duck.protein_goterm").df()')
    assert "lab.sql(" in told
    assert "nmae" in told
    assert "dqp/interfaces" not in told
    assert len(told.splitlines()) <= 7, told


def test_the_callers_data_frame_in_a_cell(shell: InteractiveShell) -> None:
    shell.user_ns["frame"] = pa.table({"x": [1, 2]})
    assert ran(shell, "%%dqp lab\nselect sum(x)::int as s from frame").rows() == [(3,)]


def test_the_example_notebook() -> None:
    notebook = nbformat.read(EXAMPLES / "federation.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    client = NotebookClient(notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": EXAMPLES}})
    client.execute()
    shown = [
        {**output.get("data", {}), "stream": output.get("text", "")}
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    ]
    pages = "\n".join(each.get("text/html", "") for each in shown)
    assert "Remote duck · duckdb" in pages
    assert "in the engine" in pages
    # The same counts as one DuckDB over both tables gives.
    assert "<td>Y2H</td><td>909</td><td>610</td>" in pages
    assert "[561, 154, 113]" in "\n".join(each.get("text/plain", "") for each in shown)
    assert "Did you mean 'GOTermIdentifier'?" in "\n".join(each["stream"] for each in shown)
