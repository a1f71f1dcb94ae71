"""Binds one SELECT: its list, grouping, windows and order, in the order in which DuckDB computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from dqp.algebra.operators import Aggregate, Distinct, Filter, Item, Nested, Project, Sort, column, numbered
from dqp.algebra.trees import free, substituted
from dqp.binding.expressions import Expressions
from dqp.binding.from_clause import from_clause
from dqp.binding.scope import Output, Scope, Unmodelled, folded, only
from dqp.binding.statement import Binder, Ctes

_SELECT = frozenset(
    "with_ expressions from_ joins where group having qualify windows distinct order limit offset".split()
)

Key = tuple[exp.Expression | int, exp.Expression]
"""A key of ORDER BY or DISTINCT ON: an expression or the number of an output, and the key as it is written."""


def limits(node: exp.Expression) -> tuple[int | None, int]:
    """LIMIT and OFFSET. Raises Unmodelled where they are not whole numbers."""
    limit, offset = node.args.get("limit"), node.args.get("offset")
    count = None
    if limit is not None:
        options = limit.args.get("limit_options")
        if not isinstance(limit, exp.Limit) or (options is not None and any(options.args.values())):
            raise Unmodelled("LIMIT of another kind")
        value = limit.expression
        if not (isinstance(value, exp.Null) or (isinstance(value, exp.Var) and value.name.upper() == "ALL")):
            count = _whole(value)
    return count, _whole(offset.expression) if offset is not None else 0


def _whole(node: exp.Expression) -> int:
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit() and int(node.name) < 2**63:
        return int(node.name)
    raise Unmodelled("LIMIT that is no number")


def position_of(node: exp.Expression, count: int) -> int | None:
    """The position, from 0, that a whole number in ORDER BY or GROUP BY means; None for any other expression."""
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
        position = int(node.name)
        if not 1 <= position <= count:
            raise Unmodelled("position")
        return position - 1
    return None


def is_constant(node: exp.Expression) -> bool:
    """A literal, NULL, true or false."""
    return isinstance(node, exp.Literal | exp.Null | exp.Boolean)


def ordered(like: exp.Expression, value: exp.Expression) -> exp.Expression:
    """``value`` as a sort key with the direction of ``like``."""
    return exp.Ordered(this=value, desc=bool(like.args.get("desc")), nulls_first=bool(like.args.get("nulls_first")))


class Select:
    """Binds one SELECT; ``bound`` gives its tree."""

    def __init__(self, binder: Binder, node: exp.Select, outer: Scope | None, ctes: Ctes) -> None:
        only(node, _SELECT)
        distinct = node.args.get("distinct")
        self.on = distinct.args.get("on") if distinct is not None else None
        """The keys of DISTINCT ON as they are written."""
        self.binder, self.node, self.ctes, self.names = binder, node, ctes, binder.names
        self.distinct = distinct is not None and self.on is None
        self.tree, self.scope = from_clause(binder, node, outer, ctes)
        self.scope.parent = outer
        windows = {folded(each.name): each for each in node.args.get("windows") or ()}
        self.bind = Expressions(self.scope, self.names, self._subquery, binder.moment, windows)
        self.outputs: list[tuple[str | None, exp.Expression | int]] = []
        """Of each output its name, and its bound column (from a star) or the number of its item."""

    def _subquery(self, query: exp.Expression, scope: Scope) -> Output:
        return self.binder.query(query, scope, self.ctes)

    def bound(self) -> Output:
        self._items()
        where = self.node.args.get("where")
        if where is not None:
            condition = self.bind.condition(where.this)
            if self.bind.aggregates or self.bind.windows:
                raise Unmodelled("alias of an aggregate in WHERE")
            self.tree = Filter(self.tree, condition)
        group, sets = self._group()
        values = [each if isinstance(each, exp.Expression) else self.bind.item(each) for _, each in self.outputs]
        having = self._condition("having")
        if having is not None and group is not None and self.node.args["group"].args.get("all"):
            group = self._with_columns_of(having, group)
        qualify = self._condition("qualify")
        order = self.node.args.get("order")
        keys = self._keys(order.expressions if order is not None else [], values)
        on = self._keys(self.on.expressions if self.on is not None else [], values)
        if group is not None or having is not None or self.bind.aggregates:
            over = self._aggregated(group or [], sets)
            values = [over(each) for each in values]
            keys, on = (
                [(over(key) if isinstance(key, exp.Expression) else key, like) for key, like in each]
                for each in (keys, on)
            )
            self.bind.windows = {over(window): name for window, name in self.bind.windows.items()}
            if having is not None:
                self.tree = Filter(self.tree, over(having))
            qualify = over(qualify) if qualify is not None else None
        return self._projected(values, keys, qualify, on)

    def _condition(self, name: str) -> exp.Expression | None:
        node = self.node.args.get(name)
        return self.bind.condition(node.this) if node is not None else None

    # --- the select list ---

    def _items(self) -> None:
        items = self.bind.items
        aliases = self.scope.aliases
        for each in self.node.expressions:
            if isinstance(each, exp.Star):
                self._star(each, ())
                continue
            if isinstance(each, exp.Column) and isinstance(each.this, exp.Star):
                self._star(each.this, tuple(folded(part.name) for part in each.parts[:-1]))
                continue
            name = folded(each.alias) if isinstance(each, exp.Alias) else None
            if name is not None:
                aliases[name] = None if name in aliases else len(items)
            self.outputs.append((_name(each), len(items)))
            items.append(each.this if isinstance(each, exp.Alias) else each)

    def _star(self, star: exp.Expression, qualifier: tuple[str, ...]) -> None:
        only(star, frozenset(("except_", "replace", "rename")))
        excluded = {folded(each.name) for each in star.args.get("except_") or () if len(each.parts) == 1}
        if len(excluded) != len(star.args.get("except_") or ()):
            raise Unmodelled("EXCLUDE of a qualified name")
        replaced = {folded(each.alias): each.this for each in star.args.get("replace") or ()}
        renamed = {folded(each.this.name): each.alias for each in star.args.get("rename") or ()}
        for name, value in self.scope.visible(qualifier):
            known = folded(name or "")
            if known in excluded:
                continue
            if known in replaced:
                self.outputs.append((name, len(self.bind.items)))
                self.bind.items.append(replaced[known])
            else:
                self.outputs.append((renamed.get(known, name), value))

    # --- grouping ---

    def _group(self) -> tuple[list[exp.Expression] | None, list[list[exp.Expression]] | None]:
        """The keys, None without GROUP BY, and the grouping sets, if there are any."""
        group = self.node.args.get("group")
        if group is None:
            return None, None
        only(group, frozenset(("expressions", "all", "grouping_sets", "cube", "rollup")))
        if group.args.get("all"):
            return self._group_all(), None
        sets: list[list[exp.Expression]] = [[]]
        several = False
        parts = [*group.expressions]
        for name in ("grouping_sets", "rollup", "cube"):
            parts += group.args.get(name) or []
        for part in parts:
            new_sets = self._sets(part)
            several = several or isinstance(part, exp.GroupingSets | exp.Rollup | exp.Cube)
            sets = [[*one, *other] for one in sets for other in new_sets]
        keys = list(dict.fromkeys(key for one in sets for key in one))
        if self.bind.aggregates or self.bind.windows:
            raise Unmodelled("aggregate in GROUP BY")
        return keys, sets if several else None

    def _group_all(self) -> list[exp.Expression]:
        keys: list[exp.Expression] = []
        for _, each in self.outputs:
            before = len(self.bind.aggregates), len(self.bind.windows)
            value = each if isinstance(each, exp.Expression) else self.bind.item(each)
            if len(self.bind.windows) != before[1]:
                raise Unmodelled("window function with GROUP BY ALL")
            if not {column.name for column in value.find_all(exp.Column)} & set(self.bind.aggregates.values()):
                keys.append(value)
        return list(dict.fromkeys(keys))

    def _with_columns_of(self, having: exp.Expression, keys: list[exp.Expression]) -> list[exp.Expression]:
        """The keys of GROUP BY ALL with a HAVING: in DuckDB, the columns of HAVING outside aggregates are keys too."""
        aliases = {folded(each.alias) for each in self.node.expressions if isinstance(each, exp.Alias)}
        named = {folded(each.name) for each in self.node.args["having"].find_all(exp.Column) if not each.table}
        if having.find(Nested) or aliases & named:  # an alias goes before a column here
            raise Unmodelled("subquery or alias in HAVING with GROUP BY ALL")
        rows = self.scope.identifiers()
        columns = [column(each.name) for each in having.find_all(exp.Column, bfs=False) if each.name in rows]
        return list(dict.fromkeys([*keys, *columns]))

    def _sets(self, node: exp.Expression) -> list[list[exp.Expression]]:
        """The grouping sets that a member of GROUP BY stands for."""
        if isinstance(node, exp.GroupingSets):
            return [one for each in node.expressions for one in self._sets(each)]
        if isinstance(node, exp.Rollup | exp.Cube):
            parts = [self._sets(each)[0] for each in node.expressions]
            if isinstance(node, exp.Rollup):
                return [[key for part in parts[:size] for key in part] for size in range(len(parts), -1, -1)]
            chosen: list[list[exp.Expression]] = [[]]
            for part in parts:
                chosen = [[*one, *more] for one in chosen for more in (part, [])]
            return chosen
        if isinstance(node, exp.Tuple):
            return [[key for each in node.expressions for key in self._sets(each)[0]]]
        if isinstance(node, exp.Paren):
            return self._sets(node.this)
        position = position_of(node, len(self.outputs))
        if position is not None:
            _, each = self.outputs[position]
            return [[each if isinstance(each, exp.Expression) else self.bind.item(each)]]
        return [[self.bind.condition(node)]]

    def _aggregated(
        self, group: list[exp.Expression], sets: list[list[exp.Expression]] | None
    ) -> Callable[[exp.Expression], exp.Expression]:
        """Puts the Aggregate over the tree. Returns a function that changes an expression over rows to one over
        groups."""
        keys: list[Item] = []
        known: dict[exp.Expression, str] = {}
        for key in group:
            plain = isinstance(key, exp.Column) and sets is None and key.name in self.tree.columns
            known[key] = key.name if plain else self.names.new(key.name if isinstance(key, exp.Column) else "key")
            keys.append((known[key], key))
        gone = self.scope.identifiers() - {key.name for key in group if isinstance(key, exp.Column) and sets is None}
        renamed = {key.name: column(identifier) for key, identifier in known.items() if isinstance(key, exp.Column)}

        def over(node: exp.Expression) -> exp.Expression:
            identifier = known.get(node) if known else None
            if identifier is not None:
                return column(identifier)
            if isinstance(node, exp.Column):
                if node.name in gone:
                    raise Unmodelled("column that is no key")
                return node
            if isinstance(node, Nested):
                return nested(node)
            arguments: dict[str, Any] = {}
            for name, value in node.args.items():
                if isinstance(value, exp.Expression):
                    arguments[name] = over(value)
                elif type(value) is list:
                    arguments[name] = [over(each) if isinstance(each, exp.Expression) else each for each in value]
                else:
                    arguments[name] = value
            changed = node.__class__(**arguments)
            changed._type = node._type
            return changed

        def nested(node: Nested) -> exp.Expression:
            needed = free(node.plan) & gone
            if needed - renamed.keys():
                raise Unmodelled("column that is no key in a subquery")
            changed = substituted(node, {name: renamed[name] for name in needed}) if needed else node
            operand = node.args.get("this")
            return Nested(**{**changed.args, "this": over(operand)}) if operand is not None else changed

        aggregates = tuple(
            (identifier, over(each) if isinstance(each, exp.Grouping | exp.GroupingId) else each)
            for each, identifier in self.bind.aggregates.items()
        )
        if not keys and not aggregates:
            raise Unmodelled("groups without anything")
        made_sets = tuple(tuple(dict.fromkeys(known[key] for key in one)) for one in sets) if sets is not None else None
        self.tree = Aggregate(self.tree, tuple(keys), aggregates, made_sets)
        return over

    # --- order and projection ---

    def _keys(self, written: list[exp.Expression], values: list[exp.Expression]) -> list[Key]:
        """The keys of ORDER BY or DISTINCT ON. The alias of an output goes before a column."""
        keys: list[Key] = []
        aliases = self.scope.aliases
        outputs = {each: number for number, (_, each) in enumerate(self.outputs) if isinstance(each, int)}
        for each in written:
            this = each.this if isinstance(each, exp.Ordered) else each
            if each.args.get("with_fill"):
                raise Unmodelled("WITH FILL")
            if isinstance(this, exp.Var) and this.name.upper() == "ALL":
                keys += [(number, each) for number in range(len(values))]
            elif (position := position_of(this, len(values))) is not None:
                keys.append((position, each))
            elif isinstance(this, exp.Column) and len(this.parts) == 1 and folded(this.name) in aliases:
                item = aliases[folded(this.name)]
                if item is None:
                    raise Unmodelled("alias given twice")
                keys.append((outputs[item], each))
            elif not is_constant(this):
                keys.append((self.bind.condition(this), each))
        numbers = {value: number for number, value in reversed(list(enumerate(values)))}
        return [(numbers.get(key, key) if isinstance(key, exp.Expression) else key, each) for key, each in keys]

    def _projected(
        self,
        values: list[exp.Expression],
        keys: list[Key],
        qualify: exp.Expression | None,
        on: list[Key],
    ) -> Output:
        limit, offset = limits(self.node)
        hidden = self.on is not None or any(isinstance(key, exp.Expression) for key, _ in keys)
        if hidden and self.distinct:
            raise Unmodelled("DISTINCT ordered by something else")
        windows = {name: window for window, name in self.bind.windows.items()}
        if windows and (hidden or qualify is not None):
            passed = tuple((each, column(each)) for each in self.tree.columns)
            self.tree = Project(self.tree, (*passed, *windows.items()))
            windows = {}
        if qualify is not None:
            self.tree = Filter(self.tree, qualify)
        if self.on is not None:
            self._first_of_each(on, keys, values)
        if windows:
            values = [substituted(each, windows) for each in values]
        items: list[Item] = []
        taken: set[str] = set()
        tree_columns = frozenset(self.tree.columns)
        for (name, _), value in zip(self.outputs, values, strict=True):
            passes = isinstance(value, exp.Column) and value.name in tree_columns - taken
            identifier = value.name if passes else self.names.new(name or "column")
            taken.add(identifier)
            items.append((identifier, value))
        keys = [(key, like) for key, like in keys if not isinstance(key, int) or _varies(values[key])]
        if hidden:
            sorting = [ordered(like, values[key].copy() if isinstance(key, int) else key) for key, like in keys]
            self.tree = Project(Sort(self.tree, tuple(sorting), limit, offset), tuple(items))
        else:
            self.tree = Project(self.tree, tuple(items))
            if self.distinct:
                self.tree = Distinct(self.tree)
            sorting = [ordered(like, column(items[key][0])) for key, like in keys if isinstance(key, int)]
            if sorting or limit is not None or offset:
                self.tree = Sort(self.tree, tuple(sorting), limit, offset)
        columns = tuple((name, identifier) for (name, _), (identifier, _) in zip(self.outputs, items, strict=True))
        return Output(self.tree, columns)

    def _first_of_each(self, on: list[Key], keys: list[Key], values: list[exp.Expression]) -> None:
        """Leaves of the rows that are equal in ``on`` the first in the order of ``keys``."""
        groups, order = (
            [(values[key].copy() if isinstance(key, int) else key, like) for key, like in each] for each in (on, keys)
        )
        number = self.names.new("row_number")
        sorting = [ordered(like, key) for key, like in order if key not in {each for each, _ in groups}]
        first = exp.EQ(this=column(number), expression=exp.Literal.number(1))
        self.tree = Filter(numbered(self.tree, number, [key for key, _ in groups], sorting), first)


def _varies(node: exp.Expression) -> bool:
    """Whether an expression may differ from row to row. Only such an expression can be a sort key."""
    return node.find(exp.Column, Nested, exp.Window) is not None


def _name(node: exp.Expression) -> str | None:
    """The name of a select item, None where DuckDB invents it."""
    if isinstance(node, exp.Alias):
        return str(node.alias)
    return node.name if isinstance(node, exp.Column) else None
