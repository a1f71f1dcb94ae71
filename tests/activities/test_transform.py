"""Tokens, compression, archives, style sheets: what comes out, what is refused, what is bounded."""

import gzip
import io
import os
import socket
import zipfile
import zlib
from collections import defaultdict

import psutil
import pytest
import zstandard
from lxml import etree

from dai.config import Config, LimitsConfig
from dai.drivers.memory import Memory, Script
from dai.errors import BusyError, CancelledError, DataError, LimitError, ParameterError
from dai.perform.parser import parse
from dai.perform.pipeline import Environment, Running
from dai.perform.response import document
from dai.perform.xml import xslt
from dai.perform.xml.xslt import SPENT
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block
from tests.documents import Ends, query, results, running, table, to_csv, written
from tests.pipelines import begun

SMALL = Config(limits=LimitsConfig(unpacked_bytes=1 << 20, transform_bytes=1 << 20, block_bytes=1000))


def work_over(body: str, config: Config = SMALL, **streams: bytes | list[bytes]) -> Running:
    """Activities over pushed streams, each of which is an output of its name."""
    session = Ends(capacity=100_000)
    for name, blocks in streams.items():
        for data in blocks if isinstance(blocks, list) else [blocks]:
            session.input(f"in {name}").put(Block(data, 1), Cancellation())
        session.input(f"in {name}").finish()
        body += f'<inputStream name="in {name}"><toLocal name="{name}"/></inputStream>'
    return Running(parse(written(body)), Environment(None, session, Cancellation(), config=config))


def ends_of(body: str, config: Config = SMALL, **streams: bytes | list[bytes]) -> dict[str, list[Block]]:
    """The blocks of each end point; the cause of a failure is raised."""
    with work_over(body, config, **streams) as work:
        work.open()
        ends = {end.name: list(source) for end, source in work.end_points()}
        work.raise_cause()
    return ends


def joined(blocks: list[Block]) -> bytes:
    return b"".join(bytes(memoryview(block.data)) for block in blocks)


# --- tokens ---------------------------------------------------------------------------------------------------------


def tokens(delimiters: str = "", more: str = "") -> str:
    return (
        f'<stringTokenizer name="t"><stringBlocksInput from="s"/>{delimiters}<stringTokensOutput name="e"/>'
        f"</stringTokenizer>{more}"
    )


@pytest.mark.parametrize("cut", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "delimiters", "expected"),
    [
        ("To be, or not: that", '<delimiters value=":,"/>', ["To be", " or not", " that"]),
        ("a b  c ", "", ["a", "b", "c"]),
        (",,a,,", '<delimiters value=","/>', ["a"]),
        ("", "", []),
        (" ", "", []),
        ("é€𝄞-é", '<delimiters value="-"/>', ["é€𝄞", "é"]),
        ("a€b", '<delimiters value="€"/>', ["a", "b"]),
        ("a]b^c\\d-e", '<delimiters value="]^\\-"/>', ["a", "b", "c", "d", "e"]),
        ("all of it", '<delimiters value=""/>', ["all of it"]),
    ],
)
def test_tokens(text, delimiters, expected, cut):
    """However the text is cut into blocks."""
    data = text.encode()
    blocks = [data[at : at + cut] for at in range(0, len(data), cut)]
    actual = ends_of(tokens(delimiters), s=blocks)["e"]
    assert [bytes(block.data).decode() for block in actual] == expected
    assert {block.rows for block in actual} <= {1}


def test_tokens_in_blocks_of_strings():
    aggregated = '<blockAggregator name="b"><input from="e"/><blocksize size="2"/><output name="f"/></blockAggregator>'
    actual = ends_of(tokens('<delimiters separator="&#10;"/>', aggregated), s=b"a b c d e")["f"]
    assert [(bytes(block.data), block.rows) for block in actual] == [(b"a\nb\n", 2), (b"c\nd\n", 2), (b"e\n", 1)]


def test_a_token_has_a_bound():
    with pytest.raises(LimitError, match="1,000 characters"):
        ends_of(tokens(), s=[b"x" * 600] * 2)


def test_tokens_are_of_text():
    with pytest.raises(DataError, match="UTF-8"):
        ends_of(tokens(), s=b"\xff\xff")


# --- compression ----------------------------------------------------------------------------------------------------


def compress(element: str, settings: str = "", metadata: str = '<metadataOutput name="m"/>', mode: str = "") -> str:
    return f'<{element} name="c"{mode}>{settings}<input from="s"/><compressedOutput name="e"/>{metadata}</{element}>'


UNPACK = {"gzipCompression": gzip.decompress, "zstdCompression": lambda data: zstandard.decompress(data, 1 << 28)}
CHECKSUMS = {"adler32": zlib.adler32, "crc32": zlib.crc32}
DECOMPRESS = ' mode="decompress"'


@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("element", UNPACK)
def test_compression_and_its_checksum(element, checksum):
    data = [os.urandom(100_000) for _ in range(5)] + [b"x" * 100_000]
    ends = ends_of(compress(element, f'<settings checksum="{checksum}" level="9"/>'), s=data)
    compressed = joined(ends["e"])
    packed = zstandard.ZstdDecompressor().decompressobj().decompress(compressed) if element[0] == "z" else None
    assert (packed or gzip.decompress(compressed)) == b"".join(data)
    root = etree.fromstring(joined(ends["m"]))
    assert root.tag == f"{element}Metadata"
    assert dict(root[0].attrib) == {"type": checksum, "value": str(CHECKSUMS[checksum](compressed))}
    back = ends_of(
        compress(element, metadata="", mode=DECOMPRESS),
        s=[compressed[at : at + 999] for at in range(0, len(compressed), 999)],
    )
    assert joined(back["e"]) == b"".join(data)


@pytest.mark.parametrize("element", UNPACK)
def test_metadata_may_be_read_first(element):
    """The archive is kept for whoever reads it later."""
    later = (
        f'<sequence><flow>{compress(element)}<outputStream name="first"><fromLocal from="m"/></outputStream></flow>'
        '<outputStream name="second"><fromLocal from="e"/></outputStream></sequence>'
    )
    with work_over(later, s=[b"x" * 1000] * 50) as work:
        session = work.environment.session
        session.output("first").capacity = session.output("second").capacity = 1000
        work.open().finish()
    first = joined(list(session.output("first").blocks(Cancellation())))
    second = joined(list(session.output("second").blocks(Cancellation())))
    assert etree.fromstring(first)[0].get("value") == str(zlib.adler32(second))


def test_several_members_are_one_document():
    members = gzip.compress(b"one ") + gzip.compress(b"two")
    assert joined(ends_of(compress("gzipCompression", metadata="", mode=DECOMPRESS), s=members)["e"]) == b"one two"
    frames = zstandard.compress(b"one ") + zstandard.compress(b"two")
    assert joined(ends_of(compress("zstdCompression", metadata="", mode=DECOMPRESS), s=frames)["e"]) == b"one two"


PACK = {"gzipCompression": gzip.compress, "zstdCompression": zstandard.compress}


@pytest.mark.parametrize("element", PACK)
def test_bombs(element):
    bomb = PACK[element](b"\0" * (64 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(LimitError, match="1,048,576 bytes"):
        ends_of(compress(element, metadata="", mode=DECOMPRESS), s=bomb)


@pytest.mark.parametrize("element", PACK)
@pytest.mark.parametrize("data", [b"not compressed", b"", b"\x1f\x8b\x08", "cut", "changed"])
def test_broken_data(element, data):
    whole = PACK[element](os.urandom(10_000))
    if data == "cut":
        data = whole[:-20]
    elif data == "changed":
        data = whole[:2] + b"\xff\xff\xff\xff" + whole[6:]
    if data == b"" and element == "gzipCompression":
        assert ends_of(compress(element, metadata="", mode=DECOMPRESS), s=data)["e"] == []
        return
    with pytest.raises(DataError, match="incomplete, damaged"):
        ends_of(compress(element, metadata="", mode=DECOMPRESS), s=data)


@pytest.mark.parametrize(
    ("element", "level"), [("gzipCompression", 10), ("gzipCompression", -1), ("zstdCompression", 0)]
)
def test_levels(element, level):
    with pytest.raises(ParameterError, match="level"):
        ends_of(compress(element, f'<settings level="{level}"/>'), s=b"x")


# --- archives -------------------------------------------------------------------------------------------------------


def archive(entries: str, before: str = "") -> str:
    return f'<zipArchive name="z">{before}{entries}<archivedOutput name="e"/><metadataOutput name="m"/></zipArchive>'


def test_an_archive():
    entries = '<zipEntry name="a/é.bin" from="s"/><zipEntry from="u"/><zipEntry>text &amp; more</zipEntry>'
    settings = '<comment>About é</comment><settings checksum="crc32" level="1"/>'
    data = [os.urandom(300_000), b"x" * 300_000]
    ends = ends_of(archive(entries, settings), s=data, u=b"second")
    whole = joined(ends["e"])
    assert len(ends["e"]) > 1
    with zipfile.ZipFile(io.BytesIO(whole)) as actual:
        assert actual.testzip() is None
        assert actual.comment.decode() == "About é"
        assert {name: actual.read(name) for name in actual.namelist()} == {
            "a/é.bin": b"".join(data),
            "u": b"second",
            "entry3": b"text & more",
        }
    assert dict(etree.fromstring(joined(ends["m"]))[0].attrib) == {"type": "crc32", "value": str(zlib.crc32(whole))}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\\b", "a/", "&#10;", "/", "C:\\x", "é" * 2_049])
def test_names_of_entries_stay_where_they_are_unpacked(name):
    with pytest.raises(ParameterError, match="name of an entry"):
        ends_of(archive(f'<zipEntry name="{name}">x</zipEntry>'))


@pytest.mark.parametrize(
    ("entries", "before", "says"),
    [
        ('<zipEntry name="a">x</zipEntry><zipEntry name="a">y</zipEntry>', "", "Two entries"),
        ("<zipEntry>x</zipEntry>", f"<comment>{'é' * 32_768}</comment>", "65,536 bytes"),
        ("<zipEntry>x</zipEntry>", '<settings level="10"/>', "level"),
    ],
)
def test_archives_refused(entries, before, says):
    with pytest.raises(ParameterError, match=says):
        ends_of(archive(entries, before))


@pytest.mark.parametrize("element", ["gzipCompression", "zstdCompression", "zipArchive", "stringTokenizer"])
def test_cancelled_in_the_query(element):
    body = {
        "zipArchive": archive('<zipEntry from="s"/>'),
        "stringTokenizer": tokens('<delimiters value="-"/>'),
    }.get(element) or compress(element)
    driver = Memory({"q": Script(table(1000), batch_rows=1, blocks=True)})
    cancellation = Cancellation()
    with running(query("q", "q", "t") + to_csv("csv", "t", "s") + body, driver, cancellation=cancellation) as work:
        thread, raised = begun(work)
        assert driver.blocked.wait(60)
        cancellation.cancel(CancelledError("Enough."))
        thread.join(60)
    assert [type(error) for error in raised] == [CancelledError]
    assert driver.open_streams == 0


# --- style sheets ---------------------------------------------------------------------------------------------------

XSL = (
    '<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform" xmlns:str="http://exslt.org/strings"'
    ' xmlns:re="http://exslt.org/regular-expressions" xmlns:exsl="http://exslt.org/common"'
    ' xmlns:dyn="http://exslt.org/dynamic" xmlns:xalan="org.apache.xalan.xslt.extensions.Redirect"'
    ' xmlns:xt="http://www.jclark.com/xt" xmlns:saxon="http://icl.com/saxon"'
    ' extension-element-prefixes="str exsl re dyn xalan xt saxon">{}</xsl:stylesheet>'
)
TEMPLATE = XSL.format('<xsl:template match="/">{}</xsl:template>')
TRANSFORM = '<xslTransform name="x"><inputXSLT from="style"/><inputXML from="xml"/><output name="e"/></xslTransform>'


def transformed(style: str, xml: str = "<a><b>1</b><b>2</b></a>") -> bytes:
    return joined(ends_of(TRANSFORM, style=style.encode(), xml=xml.encode())["e"])


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (TEMPLATE.format('<s><xsl:value-of select="sum(//b)"/></s>'), "<s>3</s>"),
        (XSL.format('<xsl:output method="text"/><xsl:template match="/">a&lt;b</xsl:template>'), "a<b"),
        (TEMPLATE.format('<s><xsl:value-of select="str:concat(//b)"/></s>'), "<s>12</s>"),
    ],
)
def test_style_sheets(style, expected):
    assert expected in transformed(style).decode()


def test_a_result_as_a_response():
    query_to_xml = query("q", "q", "t") + (
        '<sqlResultsToXML name="c"><resultSet from="t"/><webRowSet name="xml"/></sqlResultsToXML>'
    )
    style = TEMPLATE.format("<n><xsl:value-of select=\"count(//*[local-name()='currentRow'])\"/></n>")
    body = TRANSFORM.replace('<inputXSLT from="style"/>', f"<inputXSLT><![CDATA[{style}]]></inputXSLT>")
    with running(query_to_xml + body, Memory({"q": Script(table(7))})) as work:
        assert "<n>7</n>" in results(b"".join(document(work, "s", "r")))["e"].text


@pytest.fixture
def listener():
    """A server that nobody may call."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x"
        with pytest.raises(BlockingIOError):
            server.accept()


WAYS_OUT = {
    "document": TEMPLATE.format("<s><xsl:copy-of select=\"document('{}')\"/></s>"),
    "document of a computed name": TEMPLATE.format("<s><xsl:copy-of select=\"document(concat('{}', ''))\"/></s>"),
    "document of an evaluated expression": TEMPLATE.format(
        "<s><xsl:copy-of select=\"dyn:evaluate('document(&quot;{}&quot;)')\"/></s>"
    ),
    "import": XSL.format('<xsl:import href="{}"/>'),
    "include": XSL.format('<xsl:include href="{}"/>'),
    "exsl:document": TEMPLATE.format('<exsl:document href="{}.written">x</exsl:document>'),
    "xsl:document": TEMPLATE.format('<xsl:document href="{}.written">x</xsl:document>'),
    "xalan": TEMPLATE.format('<xalan:write file="{}.written">x</xalan:write>'),
    "xalan's select": TEMPLATE.format("<xalan:write select=\"'{}.written'\">x</xalan:write>"),
    "xt": TEMPLATE.format('<xt:document href="{}.written">x</xt:document>'),
    "saxon": TEMPLATE.format('<saxon:output href="{}.written">x</saxon:output>'),
    "doctype": '<!DOCTYPE x SYSTEM "{}">' + TEMPLATE.format("x"),
    "entity": '<!DOCTYPE x [<!ENTITY e SYSTEM "{}">]>' + TEMPLATE.format("&e;"),
}


@pytest.mark.parametrize(
    ("way", "schemes"), [(way, "file http") for way in WAYS_OUT] + [("document", "path ftp"), ("import", "path ftp")]
)
def test_a_style_sheet_reaches_no_file_and_no_address(way, schemes, listener, tmp_path):
    secret = tmp_path / "secret.xml"
    secret.write_text("<x>the secret</x>")
    addresses = {
        "file": secret.as_uri(),
        "path": str(secret),
        "http": listener,
        "ftp": listener.replace("http", "ftp"),
    }
    for scheme in schemes.split():
        try:
            assert b"secret<" not in transformed(WAYS_OUT[way].replace("{}", addresses[scheme]))
        except DataError as error:
            assert "the secret" not in str(error)  # noqa: PT017 - it may also come out empty
    assert [path.name for path in tmp_path.iterdir()] == ["secret.xml"]


@pytest.mark.parametrize("call", ["document('')", "document('x.xml')", "document(/*)", "document('', /)"])
def test_a_style_sheet_is_told_that_it_reads_its_inputs_only(call):
    with pytest.raises(DataError, match="reads its two inputs"):
        transformed(TEMPLATE.format(f'<s><xsl:copy-of select="{call}"/></s>'))


@pytest.mark.parametrize(
    "xml",
    ['<!DOCTYPE a [<!ENTITY e "x">]><a>&e;</a>', '<!DOCTYPE a SYSTEM "x.dtd"><a/>', "<a>", "", "no xml", "<a>&e;</a>"],
)
def test_documents_refused(xml):
    with pytest.raises(DataError, match="document"):
        transformed(TEMPLATE.format("x"), xml)


@pytest.mark.parametrize(
    "style",
    [
        TEMPLATE.format("<xsl:value-of select=\"re:test('" + "a" * 40 + "!', '(a+)+$')\"/>"),
        "<a/>",
        XSL.format("<xsl:nonsense/>"),
        XSL.format('<xsl:template match="/"><xsl:call-template name="f"/></xsl:template>'
                   '<xsl:template name="f"><xsl:call-template name="f"/></xsl:template>'),
    ],
)  # fmt: skip
def test_style_sheets_refused(style):
    with pytest.raises(DataError):
        transformed(style)


ENDLESS = XSL.format(
    '<xsl:template match="/"><xsl:call-template name="f"><xsl:with-param name="n" select="60"/></xsl:call-template>'
    '</xsl:template><xsl:template name="f"><xsl:param name="n"/><xsl:if test="$n &gt; 0">{}'
    '<xsl:call-template name="f"><xsl:with-param name="n" select="$n - 1"/></xsl:call-template>'
    '<xsl:call-template name="f"><xsl:with-param name="n" select="$n - 1"/></xsl:call-template></xsl:if></xsl:template>'
)


def test_a_style_sheet_has_bounds_on_its_memory():
    with pytest.raises(LimitError, match="1,024 MiB"):
        transformed(ENDLESS.format("x" * 500_000))


def test_style_sheets_have_a_bound_on_their_time():
    config = Config(limits=LimitsConfig(transform_seconds=1))
    with pytest.raises(LimitError, match="or 1 seconds"):
        ends_of(TRANSFORM, config, style=ENDLESS.format("").encode(), xml=b"<a/>")


def test_the_time_of_all_style_sheets_of_a_document_counts():
    body, streams = "", {}
    for n in range(2):
        body += f'<xslTransform name="x{n}"><inputXSLT from="s{n}"/><inputXML from="d{n}"/><output name="e{n}"/>'
        body += "</xslTransform>"
        streams |= {f"s{n}": TEMPLATE.format("x").encode(), f"d{n}": b"<a/>"}
    with work_over(body, **streams) as work:
        work.spent[SPENT] = 59.9999
        work.open()
        (_, first), (_, second) = work.end_points()
        assert joined(list(first))
        assert work.spent[SPENT] > 60
        with pytest.raises(LimitError, match="or 60 seconds"):
            list(second)


def test_a_style_sheet_can_be_stopped():
    others = set(psutil.Process().children())  # servers of other tests
    with work_over(TRANSFORM, style=ENDLESS.format("").encode(), xml=b"<a/>") as work:
        thread, raised = begun(work)
        while not set(psutil.Process().children()) - others:
            thread.join(0.01)
            assert thread.is_alive()
        work.environment.cancellation.cancel(CancelledError("Enough."))
        thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in raised] == [CancelledError]
    assert not set(psutil.Process().children()) - others


def test_few_style_sheets_run_at_once(monkeypatch):
    """Before, a document had as many processes, each with a gigabyte, as it had style sheets that others pull."""
    monkeypatch.setattr(xslt, "PLACES", 2)
    monkeypatch.setattr(xslt, "PLACE_SECONDS", 0.1)
    sheet = TEMPLATE.format(f"<s>{'x' * 1_000_000}</s>").encode()

    def run():
        return xslt.transformed(sheet, b"<a/>", Cancellation(), 60, defaultdict(float))

    begun = [run(), run()]
    assert all(next(each) for each in begun)
    with pytest.raises(BusyError, match="as many style sheets as it can"):
        next(run())
    begun.pop().close()
    assert len(joined(map(Block, run(), [0] * 100))) > 1_000_000
    begun.pop().close()


def test_documents_have_a_bound():
    with pytest.raises(LimitError, match="1,048,576 bytes"):
        transformed(TEMPLATE.format("x"), f"<a>{'x' * (1 << 20)}</a>")


def test_a_long_message_of_a_style_sheet_does_not_stop_it():
    stop = f'<xsl:message terminate="yes">{"x" * 200_000}</xsl:message>'
    with pytest.raises(DataError):
        transformed(TEMPLATE.format(stop))
