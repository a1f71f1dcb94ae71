"""Cuts a tree with exchanges (from ``dqp.planning.distribution.spreading``) into fragments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dqp.algebra.operators import Exchange, ExchangeKind, Operator, Project, Receive, Remote, column, quoted
from dqp.algebra.trees import walk
from dqp.planning.common_subtrees import Alike, alike
from dqp.planning.context import Context
from dqp.planning.distribution.spreading import DEFAULT, Keys, Spreading, Thresholds, hashed_as
from dqp.sql.render_duckdb import expression_sql


@dataclass(frozen=True)
class Output:
    """The destination of a fragment's rows; see ``Exchange``. ``heavy`` are literals in DuckDB's SQL."""

    kind: ExchangeKind
    keys: Keys = ()
    heavy: tuple[str, ...] = ()
    copied: bool = False

    def bucket(self, partitions: int) -> str | None:
        """SQL over the fragment's columns for the number of a row's partition. For a row that goes to all partitions it
        gives one row for each. None if there is only one destination."""
        if self.kind in ("gather", "broadcast"):
            return None
        if self.kind == "spread":
            return f"CAST((row_number() OVER () - 1) % {partitions} AS INTEGER)"
        values = ", ".join(f"CAST({quoted(name)} AS {type})" for name, type in self.keys)
        hashed = f"CAST(hash({values}) % {partitions} AS INTEGER)"
        if not self.heavy:
            return hashed
        is_heavy = f"{quoted(self.keys[0][0])} IN ({', '.join(self.heavy)})"
        if self.copied:
            return f"unnest(CASE WHEN {is_heavy} THEN range({partitions})::INTEGER[] ELSE [{hashed}] END)"
        return f"CASE WHEN {is_heavy} THEN CAST(floor(random() * {partitions}) AS INTEGER) ELSE {hashed} END"


@dataclass(frozen=True)
class Fragment:
    """A tree that an evaluator runs as one query. Its leaves are remote statements, tuples in memory and other
    fragments' rows. ``instances``: how many evaluators run it; instance i reads part i of the scans in ``parted``. Its
    rows go through ``exchange`` to ``output``; both are None for the root. ``readers``: how many fragments read all of
    its rows."""

    id: int
    tree: Operator
    instances: int
    exchange: Exchange | None
    output: Output | None
    parted: tuple[Remote, ...] = ()
    readers: int = 1

    def task(self, instance: int) -> str:
        """The name of one instance of the fragment."""
        return f"{self.id}.{instance}"

    @property
    def producers(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(node.fragment for node in walk(self.tree) if isinstance(node, Receive)))


@dataclass(frozen=True)
class Plan:
    """A tree with its exchanges, and its fragments: each after the ones that it reads; the last is the root, which
    gives the answer."""

    tree: Operator
    fragments: tuple[Fragment, ...]

    @property
    def root(self) -> Fragment:
        return self.fragments[-1]

    @classmethod
    def whole(cls, tree: Operator) -> Plan:
        """The plan of a tree without exchanges."""
        return cls(tree, (Fragment(0, tree, 1, None, None),))

    @staticmethod
    def name(fragment: int) -> str:
        """The name of a fragment, by its number."""
        return f"fragment {fragment + 1}"

    def consumer(self, fragment: Fragment) -> Fragment | None:
        """The fragment that reads this fragment's rows; the first of several, which all have as many instances."""
        return next((each for each in self.fragments if fragment.id in each.producers), None)


def cut(
    tree: Operator,
    context: Context,
    evaluators: int,
    *,
    thresholds: Thresholds = DEFAULT,
    seconds: Mapping[str, float] | None = None,
    heavy: Mapping[str, tuple[exp.Expression, ...]] | None = None,
    whole: frozenset[Remote] = frozenset(),
) -> Plan:
    """The plan of an optimised tree for a number of evaluators. ``seconds``: cost of one row in an operation, by the
    operation's name. ``heavy``: by identifier of a column, literals of its frequent values. ``whole``: subtrees that
    are never read in parts. Columns whose type ``context`` does not know are never hashed."""
    if evaluators < 2:
        return Plan.whole(tree)
    context.learn(tree)
    spreading = Spreading(context, thresholds, seconds or {}, heavy or {}, whole)
    spread = spreading.gathered(spreading.place(tree))
    return Plan(spread, tuple(_Cutting(evaluators, spreading.split, context.types).fragments(spread)))


class _Cutting:
    """Replaces exchanges by ``Receive`` leaves and makes fragments of the subtrees below them."""

    def __init__(self, evaluators: int, split: set[Remote], types: Mapping[str, str]) -> None:
        self._evaluators, self._split, self._types = evaluators, split, types
        self._fragments: list[Fragment] = []
        self._same: Alike = {}
        self._sent: dict[tuple[int, int], int] = {}

    def fragments(self, root: Operator) -> list[Fragment]:
        """The fragments. Exchanges of the same rows share one fragment."""
        self._same = alike([each for each in walk(root) if isinstance(each, Exchange)])
        self._fragment(root, None)
        return self._fragments

    def _fragment(self, tree: Operator, exchange: Exchange | None) -> int:
        leaves = list(_leaves(tree))
        parted = tuple(each for each in leaves if isinstance(each, Remote) and each in self._split)
        wide = bool(parted) or any(isinstance(each, Exchange) and each.kind in ("hash", "spread") for each in leaves)
        instances = self._evaluators if wide else 1
        body = self._cut(tree, instances, {})
        number = len(self._fragments)
        output = None if exchange is None else self._output(exchange)
        self._fragments.append(Fragment(number, body, instances, exchange, output, parted))
        return number

    def _output(self, exchange: Exchange) -> Output:
        keys = tuple((each.name, hashed_as(self._types[each.name]) or "") for each in exchange.keys)
        return Output(exchange.kind, keys, tuple(map(expression_sql, exchange.heavy)), exchange.copied)

    def _cut(self, node: Operator, instances: int, received: dict[int, Receive]) -> Operator:
        """The node with its exchanges replaced. ``received``: the fragment's ``Receive`` leaves, by producer."""
        if not isinstance(node, Exchange):
            return node.with_inputs(*(self._cut(each, instances, received) for each in node.inputs))
        first, names = self._same.get(id(node), (node, None))
        assert isinstance(first, Exchange)
        producer = self._sent.get((id(first), instances))
        if producer is None:
            producer = self._sent[id(first), instances] = self._fragment(first.input, first)
            received[producer] = Receive(producer, first.columns)
        elif producer not in received:
            fragment = self._fragments[producer]
            self._fragments[producer] = replace(fragment, readers=fragment.readers + 1)
            received[producer] = Receive(producer, first.columns, fragment.readers)
        receive = received[producer]
        return receive if names is None else Project(receive, tuple((one, column(names[one])) for one in node.columns))


def _leaves(tree: Operator) -> Iterator[Operator]:
    """The fragments that a fragment reads."""
    if isinstance(tree, Exchange) or not tree.inputs:
        yield tree
    else:
        for each in tree.inputs:
            yield from _leaves(each)
