"""The original protocol, by a client that shares nothing with the server. What is expected of codes and texts is what
the original's own clients and their tests expect."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from dai.api.server.serve import Background, background
from dai.errors import ConfigurationError
from dai.replicas.codes import Code
from dai.replicas.rpc import server
from dai.replicas.rpc.server import MOST_REQUEST, SMALL, Rules
from tests.api.conftest import configured
from tests.processes import until
from tests.replicas.conftest import RpcClient

pytestmark = pytest.mark.server


def test_mappings(rpc: RpcClient) -> None:
    assert rpc.call("lrc_create", "lfn0", "pfn0") == 0
    assert (rpc.call("lrc_create", "lfn0", "pfn1"), rpc.said) == (11, "LFN already exists: lfn0")
    assert rpc.call("lrc_add", "lfn0", "pfn1") == 0
    assert (rpc.call("lrc_add", "lfn0", "pfn1"), rpc.said) == (20, "Mapping already exists: lfn0")
    assert (rpc.call("lrc_add", "none", "pfn1"), rpc.said) == (12, "LFN doesn't exist: none")
    assert rpc.lists(2, "lrc_get_pfn", "lfn0", "0", "0") == [("lfn0", "pfn0"), ("lfn0", "pfn1")]
    assert rpc.lists(2, "lrc_get_lfn", "pfn1", "0", "0") == [("lfn0", "pfn1")]
    assert rpc.lists(2, "lrc_get_pfn", "nosuchlfn", "0", "0") == []
    assert (rpc.code, rpc.said) == (12, "LFN doesn't exist: nosuchlfn")
    assert rpc.lists(2, "lrc_get_lfn", "nosuchpfn", "0", "0") == []
    assert (rpc.code, rpc.said) == (14, "PFN doesn't exist: nosuchpfn")
    assert (rpc.call("lrc_delete", "lfn0", "pfn9"), rpc.said) == (10, "Mapping doesn't exist: lfn0,pfn9")
    assert rpc.lists(0, "lrc_mapping_exists", "lfn0", "pfn0") == []
    assert rpc.code == 0
    rpc.lists(0, "lrc_mapping_exists", "lfn0", "bad")
    assert (rpc.code, rpc.said) == (10, "Mapping doesn't exist: lfn0,bad")
    assert rpc.call("lrc_delete", "lfn0", "pfn0") == 0
    assert rpc.call("lrc_delete", "lfn0", "pfn1") == 0
    assert rpc.call("lrc_add", "lfn0", "pfn0") == 12, "a name without mappings is gone"


def test_lists_are_cut_at_the_limit_and_go_on_at_an_offset(rpc: RpcClient) -> None:
    rpc.call("lrc_create", "lfn", "pfn0")
    for number in range(1, 5):
        rpc.call("lrc_add", "lfn", f"pfn{number}")
    assert rpc.lists(2, "lrc_get_pfn", "lfn", "0", "2") == [("lfn", "pfn0"), ("lfn", "pfn1")]
    assert rpc.more
    assert rpc.lists(2, "lrc_get_pfn", "lfn", "4", "2") == [("lfn", "pfn4")]
    assert not rpc.more
    assert rpc.lists(2, "lrc_get_pfn", "lfn", "5", "2") == []
    assert rpc.code == 0


def test_patterns(rpc: RpcClient) -> None:
    names = ["a_1", "ab1", "a%1", "A_1", "b"]
    rpc.lists(3, "lrc_create_bulk", *(text for name in names for text in (name, f"at {name}")), "")

    def fitting(pattern: str) -> list[str]:
        return [name for name, _ in rpc.lists(2, "lrc_get_pfn_wc", pattern, "0", "0")]

    assert fitting("%") == sorted(names)
    assert fitting("a_1") == ["a%1", "a_1", "ab1"]
    assert fitting("a\\_1") == ["a_1"]
    assert fitting("a\\%%") == ["a%1"]
    assert fitting("z%") == []
    assert rpc.code == 12, "no match is a name that does not exist"
    assert rpc.lists(2, "lrc_get_lfn_wc", "at b%", "0", "0") == [("b", "at b")]


def test_bulk_methods_tell_what_they_refused(rpc: RpcClient) -> None:
    assert rpc.lists(3, "lrc_create_bulk", "a", "1", "b", "2", "a", "3", "") == [("11", "a", "3")]
    assert rpc.lists(3, "lrc_add_bulk", "a", "4", "c", "5", "") == [("12", "c", "5")]
    assert rpc.lists(3, "lrc_renamelfn_bulk", "a", "x", "b", "x", "nope", "y", "") == [
        ("11", "b", "x"), ("12", "nope", "y"),
    ]  # fmt: skip
    rpc.send("lrc_get_pfn_bulk", "x", "nope", "")
    assert [rpc.text() for _ in range(10)] == ["0", "0", "x", "1", "0", "x", "4", "12", "nope", ""]
    rpc.send("lrc_exists_bulk", "0", "x", "nope", "")
    assert [rpc.text() for _ in range(7)] == ["0", "0", "x", "", "12", "nope", ""]
    assert rpc.lists(3, "lrc_delete_bulk", "x", "1", "x", "1", "") == [("10", "x", "1")]
    assert rpc.lists(3, "lrc_create_bulk", "") == []


def test_attributes(rpc: RpcClient) -> None:
    rpc.call("lrc_create", "lfn0", "pfn0")
    for name, type in (("dattr", "0"), ("fattr", "1"), ("iattr", "2"), ("sattr", "3")):
        rpc.call("lrc_attr_delete", name, "0", "1")
        assert rpc.call("lrc_attr_create", name, "0", type) == 0
    assert (rpc.call("lrc_attr_create", "dattr", "0", "0"), rpc.said) == (22, "Attribute already exists: dattr")
    assert rpc.lists(2, "lrc_attr_get", "dattr", "0") == [("dattr", "0")]
    written = {"dattr": ("0", "2001-01-01 12:00:01"), "fattr": ("1", "1.32"), "iattr": ("2", "-411")}
    for name, (type, value) in written.items():
        assert rpc.call("lrc_attr_add", "lfn0", name, "0", type, value) == 0
        assert rpc.lists(3, "lrc_attr_value_get", "lfn0", name, "0") == [(name, type, value)]
    assert rpc.call("lrc_attr_add", "lfn0", "iattr", "0", "3", "text") == 21
    assert rpc.call("lrc_attr_add", "lfn0", "iattr", "0", "2", "x") == 6
    assert rpc.call("lrc_attr_modify", "lfn0", "iattr", "0", "2", "26") == 0
    assert rpc.lists(3, "lrc_attr_search", "iattr", "0", "3", "0", "", "0", "0") == [("lfn0", "2", "26")]
    assert rpc.lists(3, "lrc_attr_search", "iattr", "0", "7", "20", "30", "0", "0") == [("lfn0", "2", "26")]
    rpc.lists(3, "lrc_attr_search", "iattr", "0", "5", "0", "", "0", "0")
    assert rpc.code == 29
    assert rpc.lists(3, "lrc_attr_add_bulk", "lfn0", "0", "3", "sattr", "x", "no", "0", "3", "sattr", "y", "") == [
        ("12", "no", "sattr")
    ]
    rpc.send("lrc_attr_value_get_bulk", "sattr", "0", "lfn0", "no", "")
    assert [rpc.text() for _ in range(10)] == ["0", "0", "lfn0", "sattr", "3", "x", "12", "no", "sattr", ""]
    assert rpc.lists(3, "lrc_attr_remove_bulk", "lfn0", "0", "sattr", "lfn0", "0", "sattr", "") == [
        ("29", "lfn0", "sattr")
    ]
    assert rpc.call("lrc_attr_remove", "lfn0", "fattr", "0") == 0
    rpc.lists(3, "lrc_attr_value_get", "lfn0", "fattr", "0")
    assert rpc.code == 23
    assert rpc.call("lrc_attr_delete", "iattr", "0", "0") == 30
    assert rpc.call("lrc_attr_delete", "iattr", "0", "1") == 0
    assert (rpc.call("lrc_attr_delete", "nosuchattr", "0", "1"), rpc.said) == (
        23, "Attribute doesn't exist: nosuchattr",
    )  # fmt: skip


def test_the_index_is_told_and_forgets(rpc: RpcClient, located: Background) -> None:
    rpc.lists(3, "lrc_create_bulk", *(text for at in range(10) for text in (f"lfn{at}", f"pfn{at}")), "")
    assert rpc.call("lrc_rli_add", "rlsn://here", "0", "") == 0
    assert (rpc.call("lrc_rli_add", "rlsn://here", "0", ""), rpc.said) == (18, "RLI already exists: rlsn://here")
    assert (rpc.call("lrc_rli_delete", "rlsn://here", "foo"), rpc.said) == (
        19, "RLI doesn't exist: rlsn://here: foo",
    )  # fmt: skip
    assert rpc.call("admin", "2") == 0
    until(lambda: rpc.lists(2, "rli_get_lrc", "lfn4", "0", "0") == [("lfn4", "rlsn://here")])
    assert rpc.lists(0, "rli_mapping_exists", "lfn2", "rlsn://here") == []
    assert rpc.code == 0
    rpc.lists(0, "rli_mapping_exists", "lfn2", "badlrc")
    assert (rpc.code, rpc.said) == (10, "Mapping doesn't exist: lfn2,badlrc")
    rpc.lists(0, "rli_exists", "lfn0", "2")
    assert rpc.code == 0
    rpc.lists(2, "rli_get_lrc", "nosuchlfn", "0", "0")
    assert (rpc.code, rpc.said) == (12, "LFN doesn't exist: nosuchlfn")
    rpc.send("rli_get_lrc_bulk", "lfn1", "no", "")
    assert [rpc.text() for _ in range(7)] == ["0", "0", "lfn1", "rlsn://here", "12", "no", ""]
    assert rpc.lists(2, "rli_get_lrc_wc", "lfn_", "0", "3") == [(f"lfn{at}", "rlsn://here") for at in range(3)]
    assert rpc.more
    assert [url for url, _ in rpc.lists(2, "rli_sender_list")] == ["rlsn://here"]
    assert [url for url, *_ in rpc.lists(4, "lrc_rli_list")] == ["rlsn://here"]
    # a change is told within a moment
    rpc.call("lrc_create", "new", "pfn")
    rpc.call("lrc_delete", "lfn4", "pfn4")
    until(lambda: rpc.lists(2, "rli_get_lrc", "new", "0", "0") != [])
    until(lambda: rpc.lists(2, "rli_get_lrc", "lfn4", "0", "0") == [])
    assert rpc.call("lrc_rli_delete", "rlsn://here", "") == 0
    assert located.service.replicas is not None
    located.service.replicas.index.withdraw("rlsn://here")
    rpc.lists(2, "rli_get_lrc_wc", "%", "0", "0")
    assert rpc.code == 12


def test_statistics_and_configuration(rpc: RpcClient) -> None:
    rpc.call("lrc_create", "a", "1")
    rpc.call("lrc_add", "a", "2")
    rpc.send("stats")
    told = [rpc.text() for _ in range(13)]
    assert (told[0], told[6:9]) == ("0", ["1", "2", "2"])
    assert ("lrc_server", "true") in rpc.lists(2, "get_configuration", "")
    assert rpc.lists(2, "get_configuration", "myurl") == [("myurl", "rlsn://here")]
    assert rpc.call("set_configuration", "myurl", "x") == 26
    for name, value, other in (("update_buftime", "0.04", "0.05"), ("update_factor", "7", "100")):
        assert rpc.call("set_configuration", name, value) == 0
        assert rpc.lists(2, "get_configuration", name) == [(name, value)]
        for wrong in ("0", "x", "-1", "nan", "1e99"):
            assert rpc.call("set_configuration", name, wrong) == 6
        assert rpc.call("set_configuration", name, other) == 0
    assert rpc.call("set_configuration", "none", "1") == 6
    assert rpc.call("admin", "0") == 0
    assert rpc.call("admin", "1") == 26, "a caller cannot stop the server"


def test_requests_in_pieces_and_many_at_once(rpc: RpcClient) -> None:
    """However the bytes are cut, the answers are those of the requests in their order."""
    requests = ["lrc_create\0a\0b\0", "lrc_get_pfn\0a\x000\x000\0", "lrc_create_bulk\0c\0d\0e\0f\0\0", "admin\x000\0"]
    data = "".join(requests).encode()
    expected = ["0", "0", "a", "b", "", "0", "", "0"]
    for size in (1, 3, 7, len(data)):
        rpc.call("lrc_clear")
        for at in range(0, len(data), size):
            rpc.send_bytes(data[at : at + size])
        assert [rpc.text() for _ in expected] == expected, size


def test_changes_of_many_callers_are_all_there(located: Background, rpc: RpcClient) -> None:
    assert located.rpc_port is not None
    clients = [RpcClient(located.rpc_port) for _ in range(8)]

    def work(at: int) -> None:
        for number in range(40):
            assert clients[at].call("lrc_create", f"{at}-{number}", "x") == 0

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(rpc.lists(2, "lrc_get_lfn", "x", "0", "0")) == 320
    for client in clients:
        client.send("close")
        assert client.ended()
        client.close()


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        (b"bogus\0", 8, "Bad method name: bogus"),
        (b"lrc_create\0\xff\xfe\0x\0", 6, "Bad argument: texts are UTF-8"),
    ],
)
def test_what_cannot_be_read_ends_the_connection(rpc: RpcClient, sent: bytes, code: int, said: str) -> None:
    rpc.send_bytes(sent)
    assert (int(rpc.text()), rpc.text()) == (code, said)
    assert rpc.ended()


@pytest.mark.parametrize(
    "request_",
    [
        ("lrc_create", "", "x"),
        ("lrc_create", "x" * 1001, "x"),
        ("lrc_get_pfn", "a", "-1", "0"),
        ("lrc_get_pfn", "a", "x", "0"),
        ("lrc_attr_create", "n", "7", "0"),
        ("lrc_rli_add", "rlsn://here", "0", "("),
    ],
)
def test_bad_arguments_are_refused_and_change_nothing(rpc: RpcClient, request_: tuple[str, ...]) -> None:
    assert rpc.call(*request_) == 6, rpc.said
    rpc.lists(2, "lrc_get_pfn_wc", "%", "0", "0")
    assert rpc.code == 12


@pytest.mark.parametrize("url", ["rlsn://elsewhere:39281", "file:///etc/passwd", "u"])
def test_an_index_that_cannot_be_told_is_refused(rpc: RpcClient, url: str) -> None:
    """It was taken for this server's own."""
    assert (rpc.call("lrc_rli_add", url, "0", ""), rpc.said) == (3, f"Bad URL: {url}")
    assert url not in [each for each, *_ in rpc.lists(4, "lrc_rli_list")]


def test_a_request_without_end_is_refused(rpc: RpcClient) -> None:
    piece = b"x" * (1 << 20)
    rpc.send("lrc_create_bulk")
    try:
        for _ in range(MOST_REQUEST // len(piece) + 2):
            rpc.send_bytes(piece)
    except ConnectionError:
        return
    assert rpc.text() == "6"
    assert rpc.ended()


def test_who_has_no_right_sends_little(tmp_path: Path) -> None:
    """Where callers are identified nobody has one by this protocol: what they send is not kept until its end."""
    sections: dict[str, Any] = {"identity": {"methods": ["token"]}, "replicas": {"catalog": "sqlite:///r.db"}}
    sections["replicas"]["rpc_port"] = 0
    with background(configured(tmp_path, {}, **sections)) as running:
        assert running.rpc_port is not None
        clients = [RpcClient(running.rpc_port) for _ in range(2)]
        assert clients[0].call("lrc_create", "a", "b") == Code.PERM
        clients[0].send("lrc_create_bulk", *(["a", "b"] * SMALL))
        assert int(clients[0].text()) == Code.PERM
        clients[1].send_bytes(b"x" * 1000)
        assert int(clients[1].text()) == Code.BADMETHOD
        for each in clients:
            each.text()
            assert each.ended()
            each.close()


class Told(asyncio.Transport):
    """What the server does with a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.said, self.closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_large_requests_have_little_room_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_HELD", 3 * SMALL)
    connected: set[server.Connection] = set()
    told = []
    for size in (2 * SMALL, 2 * SMALL, SMALL // 2):
        connection = server.Connection(cast(Any, None), connected, lambda _: True)
        transport = Told()
        connection.connection_made(transport)
        connection.data_received(b"lrc_create_bulk\0" + b"x" * size)
        told.append((transport.closed, transport.said))
    assert told == [(False, b"0\0"), (True, b"0\x0028\0Too many large requests at once\0"), (False, b"0\0")]


def test_short_texts_count_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_REQUEST", 2 * SMALL)
    connection = server.Connection(cast(Any, None), set(), lambda _: True)
    transport = Told()
    connection.connection_made(transport)
    connection.data_received(b"lrc_create_bulk\0" + b"a\0" * (SMALL // 32))
    assert (transport.closed, transport.said[:4]) == (True, b"0\x006\0")


def test_numbers_before_a_request_are_read_once() -> None:
    """Each byte behind them was read with all of them again."""
    connection = server.Connection(cast(Any, None), set(), lambda _: True)
    connection.connection_made(Told())
    connection.data_received(b"0\0" * 500 + b"lrc_exists_bulk\0")
    assert connection._at == 500


def test_answers_that_nobody_reads_have_little_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sixty callers who read nothing took gigabytes."""
    monkeypatch.setattr(server, "MOST_UNREAD", SMALL)
    with background(configured(tmp_path, {}, replicas={"catalog": "sqlite:///r.db", "rpc_port": 0})) as running:
        assert running.rpc_port is not None
        stuck, other = (RpcClient(running.rpc_port) for _ in range(2))
        texts = (text for at in range(60_000) for text in (f"lfn {at} {'x' * 200}", "pfn"))
        assert other.lists(3, "lrc_create_bulk", *texts, "") == []
        everything = ("lrc_get_pfn_wc", "%", "0", "0")
        stuck.read_nothing()
        stuck.send(*everything)
        assert stuck.text() == "0"
        assert other.lists(2, *everything) == []
        assert other.said == "Too many large answers at once that are not read"
        assert other.lists(2, "lrc_get_lfn", "pfn", "0", "3") != [], "small ones have room"
        stuck.close()
        until(lambda: len(other.lists(2, *everything)) == 60_000)
        other.close()


def test_who_does_not_read_an_answer_loses_the_connection(monkeypatch: pytest.MonkeyPatch, rpc: RpcClient) -> None:
    monkeypatch.setattr(server, "UNREAD_SECONDS", 0.1)
    texts = (text for at in range(60_000) for text in (f"lfn {at} {'x' * 200}", "pfn"))
    assert rpc.lists(3, "lrc_create_bulk", *texts, "") == []
    rpc.read_nothing()
    rpc.send("lrc_get_pfn_wc", "%", "0", "0")

    def lost() -> bool:
        try:
            rpc.send("0")
        except ConnectionError:
            return True
        return False

    until(lost)


def test_rights() -> None:
    rules = Rules((".*@lab: all", "reader: lrc_read rli_read", ".*: stats"), open_to_all=True)
    assert rules.allow("admin", "anna@lab")
    assert [rules.allow(each, "reader") for each in ("lrc_read", "rli_read", "lrc_update")] == [True, True, False]
    assert [rules.allow(each, "") for each in ("stats", "lrc_read")] == [True, False]
    assert Rules((), open_to_all=True).allow("admin")
    assert not Rules((), open_to_all=False).allow("lrc_read")
    for wrong in ("no colon", ".*: fly", "(: all", ".*:"):
        with pytest.raises(ConfigurationError, match=r"replicas\.acl"):
            Rules((wrong,), open_to_all=True)
