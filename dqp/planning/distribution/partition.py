"""Cuts a tree that is spread over evaluators (``dqp.planning.distribution.spreading``) at its exchanges into
fragments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dqp.algebra.operators import Exchange, ExchangeKind, Operator, Project, Receive, Remote, column, walk
from dqp.planning.common_subtrees import Alike, alike
from dqp.planning.context import Context
from dqp.planning.distribution.spreading import DEFAULT, Keys, Spreading, Thresholds, hashed_as
from dqp.sql.render_duckdb import expression_sql


@dataclass(frozen=True)
class Output:
    """Where a fragment's rows go; see ``Exchange``. ``heavy`` are literals in DuckDB's SQL."""

    kind: ExchangeKind
    keys: Keys = ()
    heavy: tuple[str, ...] = ()
    copied: bool = False

    def bucket(self, partitions: int) -> str | None:
        """The SQL, over the fragment's columns, of the number of the partition that a row goes to; of a row that goes
        to each, one row for each. None where there is nothing to choose."""
        if self.kind in ("gather", "broadcast"):
            return None
        if self.kind == "spread":
            return f"CAST((row_number() OVER () - 1) % {partitions} AS INTEGER)"
        values = ", ".join(f"CAST({_quoted(name)} AS {type})" for name, type in self.keys)
        hashed = f"CAST(hash({values}) % {partitions} AS INTEGER)"
        if not self.heavy:
            return hashed
        is_heavy = f"{_quoted(self.keys[0][0])} IN ({', '.join(self.heavy)})"
        if self.copied:
            return f"unnest(CASE WHEN {is_heavy} THEN range({partitions})::INTEGER[] ELSE [{hashed}] END)"
        return f"CASE WHEN {is_heavy} THEN CAST(floor(random() * {partitions}) AS INTEGER) ELSE {hashed} END"


@dataclass(frozen=True)
class Fragment:
    """What one evaluator runs at once: a tree whose leaves are remote statements, tuples at hand and other fragments'
    rows. ``instances``: how many run; of n, the i-th reads the i-th part of the scans named in ``parted``. ``exchange``
    is what its rows go through and ``output`` how; both are None for the root. ``readers``: the fragments that read all
    of them."""

    id: int
    tree: Operator
    instances: int
    exchange: Exchange | None
    output: Output | None
    parted: tuple[Remote, ...] = ()
    readers: int = 1

    def task(self, instance: int) -> str:
        """The name of what one evaluator has to do for it."""
        return f"{self.id}.{instance}"

    @property
    def producers(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(node.fragment for node in walk(self.tree) if isinstance(node, Receive)))


@dataclass(frozen=True)
class Plan:
    """``tree`` with its exchanges; ``fragments``: each after those it reads from; the last is the root, which gives
    the answer."""

    tree: Operator
    fragments: tuple[Fragment, ...]

    @property
    def root(self) -> Fragment:
        return self.fragments[-1]

    @classmethod
    def whole(cls, tree: Operator) -> Plan:
        """The plan of one fragment."""
        return cls(tree, (Fragment(0, tree, 1, None, None),))

    @staticmethod
    def name(fragment: int) -> str:
        """What a fragment is called, by its number."""
        return f"fragment {fragment + 1}"

    def consumer(self, fragment: Fragment) -> Fragment | None:
        """Who reads the fragment's rows; the first, where several do: all have as many instances."""
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
    """The plan of an optimised tree for so many evaluators. ``seconds``: what a row costs in an operation, by its name.
    ``heavy``: of columns by identifier, literals of the values that most rows have. ``whole``: what is never read in
    parts. Columns whose type ``context`` does not know are never hashed."""
    if evaluators < 2:
        return Plan.whole(tree)
    context.learn(tree)
    spreading = Spreading(context, thresholds, seconds or {}, heavy or {}, whole)
    spread = spreading.gathered(spreading.place(tree))
    return Plan(spread, tuple(_Cutting(evaluators, spreading.split, context.types).fragments(spread)))


class _Cutting:
    """Exchanges become ``Receive`` leaves, what is below them fragments."""

    def __init__(self, evaluators: int, split: set[Remote], types: Mapping[str, str]) -> None:
        self._evaluators, self._split, self._types = evaluators, split, types
        self._made: list[Fragment] = []
        self._same: Alike = {}
        self._sent: dict[tuple[int, int], int] = {}

    def fragments(self, root: Operator) -> list[Fragment]:
        """Exchanges of the same rows are one fragment, which several may read."""
        self._same = alike([each for each in walk(root) if isinstance(each, Exchange)])
        self._fragment(root, None)
        return self._made

    def _fragment(self, tree: Operator, exchange: Exchange | None) -> int:
        leaves = list(_leaves(tree))
        parted = tuple(each for each in leaves if isinstance(each, Remote) and each in self._split)
        wide = bool(parted) or any(isinstance(each, Exchange) and each.kind in ("hash", "spread") for each in leaves)
        instances = self._evaluators if wide else 1
        body = self._cut(tree, instances, {})
        number = len(self._made)
        output = None if exchange is None else self._output(exchange)
        self._made.append(Fragment(number, body, instances, exchange, output, parted))
        return number

    def _output(self, exchange: Exchange) -> Output:
        keys = tuple((each.name, hashed_as(self._types[each.name]) or "") for each in exchange.keys)
        return Output(exchange.kind, keys, tuple(map(expression_sql, exchange.heavy)), exchange.copied)

    def _cut(self, node: Operator, instances: int, received: dict[int, Receive]) -> Operator:
        """``received``: what the fragment receives already, by producer."""
        if not isinstance(node, Exchange):
            return node.with_inputs(*(self._cut(each, instances, received) for each in node.inputs))
        first, names = self._same.get(id(node), (node, None))
        assert isinstance(first, Exchange)
        producer = self._sent.get((id(first), instances))
        if producer is None:
            producer = self._sent[id(first), instances] = self._fragment(first.input, first)
            received[producer] = Receive(producer, first.columns)
        elif producer not in received:
            made = self._made[producer]
            self._made[producer] = replace(made, readers=made.readers + 1)
            received[producer] = Receive(producer, first.columns, made.readers)
        receive = received[producer]
        return receive if names is None else Project(receive, tuple((one, column(names[one])) for one in node.columns))


def _leaves(tree: Operator) -> Iterator[Operator]:
    """What a fragment reads."""
    if isinstance(tree, Exchange) or not tree.inputs:
        yield tree
    else:
        for each in tree.inputs:
            yield from _leaves(each)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
