"""The plan of a query: its text is bound, its tree optimised, perhaps a top-N probe found. The last plans are kept."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dai.errors import LimitError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.meaning import Meaning
from dai.streams.tracing import ending
from dqp.algebra.functions import MOMENTS
from dqp.algebra.meanings import meanings_of
from dqp.algebra.operators import Names, Operator
from dqp.algebra.trees import identifiers
from dqp.binding import marks
from dqp.binding.binder import Bound, bind
from dqp.binding.parameters import Parameters, spelled
from dqp.catalog.catalog import Catalog
from dqp.planning import top_n
from dqp.planning.context import Context, Options
from dqp.planning.costing.cost import Estimator
from dqp.planning.reuse import expected, fits, is_reusable, with_values
from dqp.planning.rules import optimise

_WORD = re.compile(r"\w+")
PLANS = 256
"""Plans kept, of the queries asked last."""
CHARACTERS = 200_000
"""Of the SQL and the parameters of the plans kept, all together: a long plan takes some 250 times their bytes."""


@dataclass(frozen=True)
class Planned:
    """A query that can be run any number of times while the catalog stays as it is. ``tree`` is ``bound.tree``
    optimised; ``probe`` a top-N probe; ``seconds`` by stage; ``rows`` that its statements are expected to give, where
    it may be used with other parameters."""

    sql: str
    bound: Bound
    tree: Operator
    context: Context
    probe: top_n.Probe | None
    seconds: Mapping[str, float]
    rows: Sequence[float] | None = None
    meanings: Sequence[Meaning] = ()
    """Of the columns; none: nobody knows any."""


class Plans:
    """Of queries over one catalog. Thread-safe."""

    def __init__(self, catalog: Catalog, options: Options) -> None:
        self._catalog, self._options = catalog, options
        self._kept: OrderedDict[tuple[str, str, int], Planned] = OrderedDict()
        self._version = 0
        self._lock = threading.Lock()

    def plan(self, sql: str, parameters: Parameters = (), *, cancellation: Cancellation | None = None) -> Planned:
        """The optimised plan of a query; the last plans are cached.

        Raises StatementError with the position in ``sql``, NotAQueryError, ParameterError, LimitError for a query that
        is nested too deeply or has too many tables, the error of a needed source that cannot list its tables, and the
        cancellation's cause."""
        version = self._catalog.version + self._catalog.learned.version
        key = (sql, spelled(parameters), version)
        with self._lock:
            if version != self._version:
                # Plans hold the uploaded tables that they read.
                self._kept.clear()
                self._version = version
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known
            form, texts = (marks.form(parameters) if parameters else None) or ("", {})
            alike = self._kept.get((sql, form, version)) if form else None
        if alike is not None and (other := self._with(alike, texts)) is not None:
            self._keep(key, other)
            return other
        above = None if cancellation is None else cancellation.span
        with ending(None if above is None else above.child("planning")), not_too_deep():
            planned = self._planned(sql, parameters, texts, cancellation)
        if MOMENTS.keys().isdisjoint(_WORD.findall(sql.lower())):
            self._keep(key, planned)
            if form and planned.rows is not None:
                self._keep((sql, form, version), planned)
        return planned

    def _with(self, planned: Planned, texts: Mapping[str, str]) -> Planned | None:
        """The plan with other literals for its parameters; None where another plan is better."""
        begin = time.perf_counter()
        context = replace(planned.context, estimator=Estimator(self._catalog.learned))
        tree, bound, probe = with_values(planned.tree, texts), planned.bound, planned.probe
        if planned.rows is None or not fits(tree, context, planned.rows):
            return None
        if probe is not None:
            bound = replace(bound, tree=with_values(bound.tree, texts))
            probe = replace(probe, remote=replace(probe.remote, tree=with_values(probe.remote.tree, texts)))
        seconds = {"binding": 0.0, "optimising": time.perf_counter() - begin}
        return replace(planned, bound=bound, tree=tree, context=context, probe=probe, seconds=seconds, rows=None)

    def _keep(self, key: tuple[str, str, int], planned: Planned) -> None:
        with self._lock:
            if key[2] != self._version or key in self._kept:
                return
            self._kept[key] = planned
            while len(self._kept) > PLANS or sum(len(each[0]) + len(each[1]) for each in self._kept) > CHARACTERS:
                self._kept.popitem(last=False)

    def _planned(
        self, sql: str, parameters: Parameters, texts: Mapping[str, str], cancellation: Cancellation | None
    ) -> Planned:
        begin = time.perf_counter()
        bound = bind(sql, self._catalog, parameters, texts)
        middle = time.perf_counter()
        context = Context(
            catalog=self._catalog,
            estimator=Estimator(self._catalog.learned),
            names=Names(identifiers(bound.tree)),
            options=self._options,
            cancellation=cancellation,
        )
        try:
            tree = optimise(bound.tree, context)
        except StatementError as error:
            raise bound.placed(error) from error
        context = replace(context, cancellation=None)
        probe = top_n.probe_for(tree, context)
        seconds = {"binding": middle - begin, "optimising": time.perf_counter() - middle}
        rows = expected(tree, context) if bound.reusable and is_reusable(bound.tree, context) else None
        return Planned(sql, bound, tree, context, probe, seconds, rows, meanings_of(bound.tree))


@contextmanager
def not_too_deep() -> Iterator[None]:
    """Trees are walked by recursion; one deeper than Python goes is refused before anything has been asked."""
    try:
        yield
    except RecursionError as error:
        raise LimitError(
            "The query is nested too deeply.",
            hint="Write a long chain of OR as IN (…), many UNION ALL as VALUES or an uploaded table, and name parts of "
            "it in WITH.",
        ) from error
