"""Scalar expressions of the grammar, typed and without errors that depend on the plan.

Every integer and decimal carries how large it can be, so that nothing overflows by accident: whether a database meets a
row that fails depends on the order in which it filters. Errors are generated on purpose elsewhere, where they are
certain.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.dqp.generated.schema import CODES, DATES, MOMENTS, TEXTS

KINDS = ("int", "dec", "dbl", "str", "date", "ts", "bool")
LIMITS = {"TINYINT": 2**7 - 1, "SMALLINT": 2**15 - 1, "INTEGER": 2**31 - 1, "BIGINT": 2**63 - 1, "HUGEINT": 2**126}
WIDTHS = tuple(LIMITS)


@dataclass(frozen=True)
class Expr:
    """``bound``: the largest absolute value of an int; ``digits`` and ``scale`` of a dec; ``exact``: sums of the dbl do
    not depend on their order; ``steady``: not a result of such an order-dependent sum; ``plain``: a column."""

    sql: str
    kind: str
    type: str = ""
    bound: int = 0
    digits: int = 0
    scale: int = 0
    exact: bool = True
    steady: bool = True
    plain: bool = False


@dataclass(frozen=True)
class Scope:
    """What an expression may name: the columns at hand, and those of the queries around (for correlation)."""

    leaves: tuple[Expr, ...]
    outer: tuple[Expr, ...] = ()
    depth: int = 0
    """How many queries this one is nested in: nesting ends."""
    subqueries: bool = True


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Expressions(ABC):
    """Writes expressions. Subqueries come from the query grammar."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, choices: Sequence[Callable[[], Expr]], weights: Sequence[float] | None = None) -> Expr:
        return self.rng.choices(choices, weights)[0]()

    @abstractmethod
    def predicate(self, scope: Scope, depth: int = 2) -> Expr:
        """A condition."""

    @abstractmethod
    def subquery_scalar(self, kind: str, scope: Scope) -> Expr | None:
        """A subquery that gives one value."""

    # Leaves

    def any(self, scope: Scope, depth: int = 2) -> Expr:
        kinds = [leaf.kind for leaf in scope.leaves if leaf.kind in KINDS] or ["int"]
        return self.of(self.rng.choice(kinds), scope, depth)

    def of(self, kind: str, scope: Scope, depth: int = 2) -> Expr:
        """An expression of a kind, ``depth`` operators deep at most."""
        if depth <= 0 or self.chance(0.4):
            return self.leaf(kind, scope)
        if scope.subqueries and scope.depth < 3 and self.chance(0.04):
            actual = self.subquery_scalar(kind, scope)
            if actual is not None:
                return actual
        if kind != "bool" and self.chance(0.2):
            return self.conditional(kind, scope, depth - 1)
        made: Expr = getattr(self, f"_{kind}")(scope, depth - 1)
        return made

    def leaf(self, kind: str, scope: Scope) -> Expr:
        actual = [leaf for leaf in scope.leaves if leaf.kind == kind]
        around = [leaf for leaf in scope.outer if leaf.kind == kind]
        if around and self.chance(0.25):
            return self.rng.choice(around)
        if actual and self.chance(0.85):
            return self.rng.choice(actual)
        return self.literal(kind)

    def literal(self, kind: str) -> Expr:
        choice = self.rng.choice
        match kind:
            case "int":
                value = choice((0, 1, -1, 2, 3, 5, 7, 10, 24, 100))
                return Expr(f"({value})" if value < 0 else str(value), "int", "SMALLINT", abs(value))
            case "dec":
                text, digits, scale = choice(
                    (("0.00", 3, 2), ("1.50", 3, 2), ("2.5", 2, 1), ("99.99", 4, 2), ("0.001", 4, 3))
                )
                return Expr(text, "dec", digits=digits, scale=scale)
            case "dbl":
                text = choice(("0.25", "1.5", "-2.75", "10", "0"))
                return Expr(choice((f"CAST({text} AS DOUBLE)", f"({text}::DOUBLE)")), "dbl")
            case "str":
                return Expr(quoted(choice(TEXTS + CODES + CODES)), "str")
            case "date":
                return Expr(f"DATE '{choice(DATES).isoformat()}'", "date")
            case "ts":
                return Expr(f"TIMESTAMP '{choice(MOMENTS).isoformat(sep=' ')}'", "ts")
            case _:
                return Expr(choice(("TRUE", "FALSE")), "bool")

    # Any kind

    def conditional(self, kind: str, scope: Scope, depth: int) -> Expr:
        one, other = self.of(kind, scope, depth), self.of(kind, scope, depth)
        test = self.predicate(scope, depth)

        def joined(sql: str) -> Expr:
            return self._either(sql, one, other)

        forms: list[Callable[[], Expr]] = [
            lambda: joined(f"CASE WHEN {test.sql} THEN {one.sql} ELSE {other.sql} END"),
            lambda: replace(one, sql=f"CASE WHEN {test.sql} THEN {one.sql} END", plain=False),
            lambda: joined(f"COALESCE({one.sql}, {other.sql})"),
            lambda: replace(one, sql=f"NULLIF({one.sql}, {other.sql})", plain=False),
        ]
        if kind in ("int", "str", "date", "ts"):
            forms += [
                lambda: joined(f"GREATEST({one.sql}, {other.sql})"),
                lambda: joined(f"LEAST({one.sql}, {other.sql})"),
            ]
        if kind in ("int", "str"):
            forms.append(
                lambda: joined(f"CASE {one.sql} WHEN {self.literal(kind).sql} THEN {other.sql} ELSE {one.sql} END")
            )
        if kind == "int" and "HUGEINT" in (one.type, other.type):
            return one
        return self.pick(forms)

    @staticmethod
    def _either(sql: str, one: Expr, other: Expr) -> Expr:
        scale = max(one.scale, other.scale)
        return Expr(
            sql,
            one.kind,
            max((one.type, other.type), key=WIDTHS.index) if one.kind == "int" else "",
            max(one.bound, other.bound),
            max(one.digits - one.scale, other.digits - other.scale) + scale,
            scale,
            one.exact and other.exact,
            one.steady and other.steady,
        )

    # Numbers

    def _int(self, scope: Scope, depth: int) -> Expr:
        return self.pick(
            [
                lambda: self._arithmetic(scope, depth),
                lambda: self._negated(scope, depth),
                lambda: self._int_of("str", "LENGTH({})", 200, scope, depth),
                lambda: self._int_of("str", f"STRPOS({{}}, {quoted(self.rng.choice(CODES))})", 200, scope, depth),
                lambda: self._int_of("date", self._date_part(), 10_001, scope, depth),
                lambda: self._int_of("ts", self._date_part(), 10_001, scope, depth),
                lambda: self._difference(scope, depth),
                lambda: self._cast_int(scope, depth),
                lambda: self._int_of("dec", "SIGN({})", 1, scope, depth, "TINYINT"),
                lambda: self._bits(scope, depth),
                lambda: self._int_of("str", "UNICODE({})", 0x10FFFF, scope, depth, "INTEGER"),
            ],
            [5, 1, 1, 0.6, 1, 0.6, 0.7, 1, 0.4, 0.4, 0.3],
        )

    def _arithmetic(self, scope: Scope, depth: int) -> Expr:
        one, other = self.of("int", scope, depth), self.of("int", scope, depth)
        operator = self.rng.choice(("+", "-", "*", "+", "-", "*", "%", "//"))
        bound = {"*": one.bound * other.bound}.get(operator, one.bound + other.bound)
        wide = max((one.type, other.type), key=WIDTHS.index)
        # The smallest number divided by minus one has no representation.
        if operator in ("%", "//"):
            if max(one.bound, other.bound) >= LIMITS[wide]:
                return one
            other = replace(other, sql=f"NULLIF({other.sql}, 0)")
        if wide == "HUGEINT" or bound >= LIMITS["BIGINT"]:
            return one
        if bound > LIMITS["TINYINT" if wide == "TINYINT" else wide] or wide in ("TINYINT", "SMALLINT"):
            wide = "BIGINT"
            one = replace(one, sql=f"CAST({one.sql} AS BIGINT)")
        return Expr(f"({one.sql} {operator} {other.sql})", "int", wide, bound)

    def _bits(self, scope: Scope, depth: int) -> Expr:
        one, other = self.of("int", scope, depth), self.of("int", scope, depth)
        wide = max((one.type, other.type), key=WIDTHS.index)
        form = self.rng.choice(("({} & {})", "({} | {})", "XOR({}, {})"))
        if wide == "HUGEINT":
            return one
        return Expr(form.format(f"CAST({one.sql} AS BIGINT)", other.sql), "int", "BIGINT", LIMITS["BIGINT"])

    def _negated(self, scope: Scope, depth: int) -> Expr:
        one = self.of("int", scope, depth)
        if one.bound >= LIMITS[one.type]:
            return one
        return replace(one, sql=self.rng.choice(("(-{})", "ABS({})")).format(one.sql), plain=False)

    def _int_of(self, kind: str, form: str, bound: int, scope: Scope, depth: int, type: str = "BIGINT") -> Expr:
        return Expr(form.format(self.of(kind, scope, depth).sql), "int", type, bound)

    def _date_part(self) -> str:
        part = self.rng.choice(("year", "month", "day", "quarter", "dow", "doy", "week"))
        return self.rng.choice((f"EXTRACT({part} FROM {{}})", f"DATE_PART('{part}', {{}})", "YEAR({})", "MONTH({})"))

    def _difference(self, scope: Scope, depth: int) -> Expr:
        one, other = self.of("date", scope, depth), self.of("date", scope, depth)
        form = self.rng.choice(("({} - {})", "DATE_DIFF('day', {}, {})", "DATE_DIFF('month', {}, {})"))
        return Expr(form.format(one.sql, other.sql), "int", "BIGINT", 10_000_000)

    def _cast_int(self, scope: Scope, depth: int) -> Expr:
        if self.chance(0.5):
            one = self.of("str", scope, depth)
            return Expr(f"TRY_CAST({one.sql} AS INTEGER)", "int", "INTEGER", LIMITS["INTEGER"])
        kind = self.rng.choice(("int", "bool", "dec", "dbl"))
        if kind == "dbl":
            one = self.leaf(kind, scope)
            one = one if one.exact or one.sql.endswith(".y") else self.literal(kind)
            return Expr(f"TRY_CAST({one.sql} AS INTEGER)", "int", "INTEGER", LIMITS["INTEGER"])
        one = self.of(kind, scope, depth)
        bound = {"bool": 1, "dec": 10 ** max(one.digits - one.scale, 0) + 1}.get(kind, one.bound)
        if bound > LIMITS["BIGINT"]:
            return one if kind == "int" else Expr(f"TRY_CAST({one.sql} AS BIGINT)", "int", "BIGINT", LIMITS["BIGINT"])
        return Expr(f"CAST({one.sql} AS BIGINT)", "int", "BIGINT", bound)

    def _dec(self, scope: Scope, depth: int) -> Expr:
        one, other = self.of("dec", scope, depth), self.of("dec", scope, depth)
        operator = self.rng.choice(("+", "-", "*"))
        if self.chance(0.25):
            return self._cast_dec(one, scope, depth)
        if self.chance(0.25):
            form, scale = self.rng.choice((("ROUND({}, 1)", 1), ("ABS({})", one.scale), ("(-{})", one.scale)))
            return replace(one, sql=form.format(one.sql), scale=min(scale, one.scale), plain=False)
        if operator == "*":
            digits, scale = one.digits + other.digits, one.scale + other.scale
        else:
            scale = max(one.scale, other.scale)
            digits = max(one.digits - one.scale, other.digits - other.scale) + scale + 1
        if digits > 18 or scale > 6:
            return one
        return Expr(f"({one.sql} {operator} {other.sql})", "dec", digits=digits, scale=scale)

    def _cast_dec(self, one: Expr, scope: Scope, depth: int) -> Expr:
        scale = self.rng.choice((0, 1, 3))
        digits = one.digits - one.scale + 1 + scale
        whole, text = self.of("int", scope, depth), self.of("str", scope, depth)
        if self.chance(0.3) and text.steady:
            return Expr(f"TRY_CAST({text.sql} AS DECIMAL(9,2))", "dec", digits=9, scale=2)
        if self.chance(0.4) and whole.bound < 10**9:
            return Expr(f"CAST({whole.sql} AS DECIMAL(11,2))", "dec", digits=11, scale=2)
        if digits > 18:
            return one
        return Expr(f"CAST({one.sql} AS DECIMAL({digits},{scale}))", "dec", digits=digits, scale=scale)

    def _dbl(self, scope: Scope, depth: int) -> Expr:
        one, other = self.of("dbl", scope, depth), self.of("dbl", scope, depth)
        whole, money = self.of("int", scope, depth), self.of("dec", scope, depth)
        steady = one.steady and other.steady
        exact = one.exact and other.exact
        return self.pick(
            [
                # Of far values an infinity less an infinity: which NaN it is, no comparison tells.
                lambda: Expr(f"({one.sql} + {other.sql})", "dbl", exact=exact, steady=steady),
                lambda: Expr(f"({one.sql} - {other.sql})", "dbl", exact=exact, steady=steady),
                lambda: Expr(f"({one.sql} * 2)", "dbl", exact=one.exact, steady=one.steady),
                lambda: Expr(f"({whole.sql} / {self.literal('int').sql})", "dbl", exact=False),
                lambda: Expr(f"({money.sql} / {self.literal('int').sql})", "dbl", exact=False),
                lambda: Expr(f"CAST({whole.sql} AS DOUBLE)", "dbl", exact=whole.bound < 2**40),
                lambda: Expr(f"CAST({money.sql} AS DOUBLE)", "dbl", exact=False),
                lambda: Expr(f"ABS({one.sql})", "dbl", exact=one.exact, steady=one.steady),
                lambda: Expr(f"FLOOR({one.sql})", "dbl", exact=one.exact, steady=one.steady),
                lambda: Expr(f"CEIL({one.sql})", "dbl", exact=one.exact, steady=one.steady),
                lambda: Expr(f"ROUND({one.sql}, {self.rng.choice((0, 1))})", "dbl", exact=False, steady=one.steady),
                lambda: Expr(f"SQRT(ABS({one.sql}))", "dbl", exact=False, steady=one.steady),
                lambda: Expr(f"(-{one.sql})", "dbl", exact=one.exact, steady=one.steady),
                lambda: Expr(f"TRUNC({one.sql})", "dbl", exact=one.exact, steady=one.steady),
                lambda: Expr(f"TRY_CAST({self.leaf('str', scope).sql} AS DOUBLE)", "dbl", exact=False),
            ]
        )

    # Text, dates

    def _str(self, scope: Scope, depth: int) -> Expr:
        one, other = self.of("str", scope, depth), self.of("str", scope, depth)
        literal = quoted(self.rng.choice(CODES))
        start, length = self.rng.choice((1, 2, 3, -2, 0)), self.rng.choice((0, 1, 2, 5))
        whole = self.of(self.rng.choice(("int", "date", "dec", "bool", "ts")), scope, depth)
        forms = {
            f"UPPER({one.sql})": 2,
            f"LOWER({one.sql})": 2,
            f"({one.sql} || {other.sql})": 3,
            f"CONCAT({one.sql}, {other.sql})": 1,
            f"SUBSTR({one.sql}, {start}, {length})": 3,
            f"SUBSTRING({one.sql} FROM 2)": 1,
            f"TRIM({one.sql})": 1.5,
            f"LTRIM({one.sql})": 0.7,
            f"RTRIM({one.sql})": 1,
            f"REPLACE({one.sql}, {literal}, 'zz')": 1,
            f"LEFT({one.sql}, {length})": 1,
            f"RIGHT({one.sql}, {length})": 0.7,
            f"REVERSE({one.sql})": 0.5,
            f"LPAD({one.sql}, {length}, '*')": 0.7,
            f"CAST({whole.sql} AS VARCHAR)": 2,
            f"CONCAT_WS('-', {one.sql}, {other.sql})": 0.5,
            f"SPLIT_PART({one.sql}, 'a', 1)": 0.4,
            f"REPEAT({one.sql}, 2)": 0.4,
            f"({one.sql})[{abs(start)}:{length + 1}]": 0.5,
            f"TRIM({one.sql}, 'a ')": 0.4,
            f"TRANSLATE({one.sql}, 'ab', 'x')": 0.3,
            f"REGEXP_REPLACE({one.sql}, '[a-e]', '<\\0>', 'g')": 0.4,
            f"REGEXP_EXTRACT({one.sql}, '[0-9]+')": 0.3,
            f"STRFTIME({self.of('date', scope, depth).sql}, '%Y-%m')": 0.4,
        }
        form = self.rng.choices(list(forms), list(forms.values()))[0]
        return Expr(form, "str", steady=one.steady)

    def _date(self, scope: Scope, depth: int) -> Expr:
        one = self.of("date", scope, depth)
        moment = self.of("ts", scope, depth)
        days = self.rng.choice((0, 1, 7, 30, 365))
        return Expr(
            self.rng.choice(
                (
                    f"({one.sql} + {days})",
                    f"({one.sql} - {days})",
                    f"CAST({moment.sql} AS DATE)",
                    f"LAST_DAY({one.sql})",
                    f"CAST(DATE_TRUNC('month', {one.sql}) AS DATE)",
                    f"CAST({one.sql} + INTERVAL {days} DAY AS DATE)",
                    f"TRY_CAST(LEFT(CAST({one.sql} AS VARCHAR), {days}) AS DATE)",
                )
            ),
            "date",
        )

    def _ts(self, scope: Scope, depth: int) -> Expr:
        one, day = self.of("ts", scope, depth), self.of("date", scope, depth)
        unit = self.rng.choice(("year", "quarter", "month", "week", "day", "hour", "minute"))
        step = self.rng.choice(("1 DAY", "1 MONTH", "90 MINUTE", "1 YEAR"))
        return Expr(
            self.rng.choice(
                (
                    f"DATE_TRUNC('{unit}', {one.sql})",
                    f"({one.sql} + INTERVAL {step})",
                    f"({one.sql} - INTERVAL {step})",
                    f"CAST({day.sql} AS TIMESTAMP)",
                    f"({day.sql} + INTERVAL {step})",
                    f"DATE_ADD({day.sql}, INTERVAL {step})",
                    f"TIME_BUCKET(INTERVAL 1 WEEK, {one.sql})",
                    f"({one.sql} + TO_DAYS({self.literal('int').sql}))",
                )
            ),
            "ts",
        )

    def _bool(self, scope: Scope, depth: int) -> Expr:
        return self.predicate(scope, depth)
