"""``dai replicas``, against a service."""

from pathlib import Path

import pytest

from dai.__main__ import main
from dai.api.server.serve import Background
from tests.replicas.conftest import RpcClient

pytestmark = pytest.mark.server


def test_verbs(located: Background, rpc: RpcClient, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["replicas", *arguments, "--server", located.url])
        said = capsys.readouterr()
        return code, said.out, said.err

    assert run("create", "lfn", "pfn") == (0, "1 done\n", "")
    assert run("create", "lfn", "pfn") == (1, "0 done, 1 refused\n", "lfn\tpfn: LFN already exists\n")
    assert run("add", "lfn", "other")[0] == 0
    many = tmp_path / "many.tsv"
    many.write_text("".join(f"n{at}\tt{at}\n" for at in range(5)))
    assert run("put", "--from", str(many)) == (0, "5 done\n", "")
    many.write_text("n\n")
    code, _, said = run("put", "--from", str(many))
    assert code == 2
    assert "Line 1" in said
    assert [line.split() for line in run("query", "lfn")[1].splitlines()[2:]] == [["lfn", "other"], ["lfn", "pfn"]]
    assert [line.split() for line in run("query", "t*", "--target")[1].splitlines()[2:]] == [
        [f"n{at}", f"t{at}"] for at in range(5)
    ]
    assert len(run("query")[1].splitlines()) == 2 + 7
    code, _, said = run("query", "none")
    assert code == 1
    assert "LFN doesn't exist: none" in said
    assert run("rename", "lfn", "renamed") == (0, "", "")
    assert run("attribute", "renamed", "rows", "5", "--type", "int") == (0, "", "")
    assert run("attribute", "renamed", "rows", "6", "--type", "int") == (0, "", "")
    assert run("attribute", "renamed")[1].split()[-3:] == ["rows", "int", "6"]
    assert run("search", "rows", "between", "6", "7")[1].split()[-3:] == ["renamed", "int", "6"]
    assert len(run("search", "rows", "lt", "6")[1].splitlines()) == 2
    assert run("exists", "renamed", "none") == (1, "renamed: there\nnone: missing\n", "")
    assert run("exists", "t1", "--target") == (0, "t1: there\n", "")
    assert run("undefine", "rows")[0] == 1
    assert run("attribute", "renamed", "rows", "--remove") == (0, "", "")
    assert run("undefine", "rows") == (0, "", "")
    assert run("search", "rows")[0] == 1
    assert run("delete", "renamed", "pfn")[0] == 0
    assert "mappings of the catalog" in run("status")[1]
    assert run("indexes", "--tell", "https://index.example.org")[1].split()[-2:] == [
        "https://index.example.org",
        "names",
    ]
    assert "index.example.org" not in run("indexes", "--forget", "https://index.example.org", "--now")[1]
    assert run("create", "lfn")[0] == 2
