"""The dialect of DuckDB databases: nearly everything, because evaluators run the same engine.

An expression that no operation of the whitelist covers is written as it is, if all its parts are on the list (functions
that depend on their arguments alone). If its type is not known here, a statement may compute with its value and filter
by it, but not return it or group by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sqlglot import exp
from sqlglot.generators.duckdb import DuckDBGenerator

from dqp.algebra.dialects import Costs
from dqp.algebra.operators import Nested, Operator
from dqp.sql.dialects.dialect import Dialect
from dqp.sql.dialects.expressions import Value, expanded
from dqp.sql.dialects.typing import BIGINT, BOOLEAN, DATE, DOUBLE, VARCHAR, NotPushed, Type, parsed
from dqp.sql.render import Columns
from dqp.sql.render_duckdb import TRUTHS, enclosed

_TYPES = (
    "boolean tinyint smallint integer bigint utinyint usmallint uinteger ubigint decimal float double varchar blob "
    "date time timestamp"
)
_ANY = f"{_TYPES} timestamptz hugeint"
_NUMBERS = "tinyint smallint integer bigint hugeint decimal double"
_UNKNOWN = Type("?")
_PURE = frozenset(
    """Abs Acos Add And Any Array Asin Atan Atan2 Avg Between BitwiseAnd BitwiseOr BitwiseXor Boolean Case Cast
    Cbrt Ceil Coalesce Column Concat ConcatWs Contains Corr Cos Cot Count CovarPop CovarSamp DPipe DataType
    DataTypeParam DateDiff DateTrunc Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Dayname Degrees Distinct Div
    EQ EndsWith Escape Exp Extract Filter Floor GT GTE Greatest Hour ILike Identifier If In IntDiv Interval Is LT LTE
    Least Left Length Levenshtein Like Literal Ln Log LogicalAnd LogicalOr Lower Max Median Min Minute Mod Month
    Monthname Mul NEQ Neg Nested Not Null NullSafeEQ NullSafeNEQ Nullif Or Order Ordered Pad Paren PercentileCont Pow
    Quarter Radians RegexpExtract RegexpILike RegexpLike RegexpReplace RegrSlope RegrIntercept Repeat Replace Reverse
    Right Round Second Sign Sin SplitPart Sqrt Star StartsWith Stddev StddevPop StddevSamp StrPosition Sub Substring
    Sum Tan TimeToStr TimestampTrunc Trim Trunc TryCast Tuple Unicode Upper Var Variance VariancePop Week Where
    Year""".split()
)
_OF_MOMENTS = "Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Hour Minute Month Quarter Second Week Year".split()
RESULTS: Mapping[str, Type] = {
    **dict.fromkeys([*_OF_MOMENTS, *"DateDiff Length Levenshtein StrPosition".split()], BIGINT),
    **dict.fromkeys("Dayname Left Lower Monthname Pad RegexpExtract RegexpReplace Replace Reverse".split(), VARCHAR),
    **dict.fromkeys("Right SplitPart Substring TimeToStr Trim Upper".split(), VARCHAR),
    **dict.fromkeys("Acos Asin Atan Atan2 Cbrt Corr Cos Cot CovarPop CovarSamp Degrees Exp Ln Log Pow".split(), DOUBLE),
    **dict.fromkeys("Radians RegrIntercept RegrSlope Sin Sqrt Stddev StddevPop StddevSamp Tan".split(), DOUBLE),
    **dict.fromkeys("Variance VariancePop".split(), DOUBLE),
    **dict.fromkeys("Contains EndsWith RegexpLike StartsWith".split(), BOOLEAN),
}
"""Types of functions, whatever those of their arguments are."""
_BY_NAME: Mapping[str, Type] = {"log2": DOUBLE}
"""As ``RESULTS``, of functions that have no class of their own; all of them are on the list."""
_AS_THEIR_NUMBER = (exp.Ceil, exp.Floor, exp.Median, exp.PercentileCont, exp.Round)
"""Functions of a DOUBLE that are a DOUBLE, and of other numbers something else."""


class DuckDB(Dialect):
    """The whitelist; the module says on what grounds."""

    product = "DuckDB"
    COSTS = Costs(
        row=5e-8,
        byte=1e-9,
        scan=1e-8,
        work=5e-8,
        value=5e-9,
        distinct=5e-8,
        sort=1e-7,
        spill=0.0,
        group=2e-8,
        pair=1e-9,
        index=0.0,
        table_key=3e-7,
        table_row=1e-8,
    )
    MOST_NUMBERS = 20_000
    JOINS = frozenset({"inner", "left", "right", "full", "semi", "anti", "asof", "asof left"})
    COLUMNS: ClassVar = {
        **{each: frozenset({each}) for each in (*_TYPES.split(), "interval")},
        "timestamp with time zone": frozenset({"timestamptz"}),
    }
    OPERATIONS = expanded(
        {
            **{operator: {_ANY: f"{{0}} {operator} {{1}}"} for operator in ("=", "<>", "<", "<=", ">", ">=")},
            **{operator: {_NUMBERS: f"{{0}} {operator} {{1}}"} for operator in ("+", "-", "*")},
            "/": {_NUMBERS: "{0} / {1}"},
            "/ constant": {"double": "{0} / {1}"},
            "//": {"tinyint smallint integer bigint": "{0} // {1}"},
            "%": {"tinyint smallint integer bigint": "{0} % {1}"},
            "neg": {_NUMBERS: "- {0}"},
            "abs": {_NUMBERS: "ABS({0})"},
            "like": {"varchar": "{0} LIKE {1}"},
            "case": {_ANY: ""},
            "group": {_ANY: "{0}"},
            "order": {_ANY: "{0}"},
            "||": {"varchar": "{0} || {1}"},
            "substring": {"varchar": "SUBSTRING({0}, {1}, {2})"},
            "substring from": {"varchar": "SUBSTRING({0}, {1})"},
            "length": {"varchar": "LENGTH({0})"},
            **{part: {"date timestamp": f"{part.upper()}({{0}})"} for part in ("year", "month", "day", "quarter")},
            **{
                f"trunc to {part}": {"date timestamp": f"DATE_TRUNC('{part}', {{0}})"}
                for part in ("year", "quarter", "month", "week", "day")
            },
            "sum": {f"{_NUMBERS} float": "SUM({0})"},
            "sum distinct": {"tinyint smallint integer bigint decimal": "SUM(DISTINCT {0})"},
            "avg": {f"{_NUMBERS} float": "AVG({0})"},
            "avg distinct": {_NUMBERS: "AVG(DISTINCT {0})"},
            "min": {_ANY: "MIN({0})"},
            "max": {_ANY: "MAX({0})"},
            "logicaland": {"boolean": "BOOL_AND({0})"},
            "logicalor": {"boolean": "BOOL_OR({0})"},
        }
    )

    def statement(self, tree: Operator) -> tuple[str, tuple[tuple[str, str], ...]]:
        sql, columns = super().statement(tree)
        for identifier, type in columns:
            if type == str(_UNKNOWN):
                raise self.refuse(f"the type of the column {identifier} is not known without asking")
        return sql, columns

    def value(self, node: exp.Expression, columns: Columns) -> Value:
        try:
            return super().value(node, columns)
        except NotPushed:
            return self._as_it_is(node, columns)

    def _as_it_is(self, node: exp.Expression, columns: Columns) -> Value:
        for each in node.walk():
            if type(each).__name__ not in _PURE and not (isinstance(each, exp.Anonymous) and _result(each)):
                raise self.refuse(f"{each.key} is not on the list")
            if isinstance(each, exp.Column) and each.name in self.opaque:
                raise NotPushed(self.opaque[each.name])
        generator = _Generator(dialect="duckdb")
        generator.dialect_of, generator.known = self, columns
        return Value(f"({generator.generate(node, copy=False)})", self._type(node, columns), True)

    def _type(self, node: exp.Expression, columns: Columns) -> Type:
        if isinstance(node, exp.Filter | exp.Paren):
            return self._type(node.this, columns)
        if isinstance(node, exp.Predicate | exp.Connector | exp.Not):
            return BOOLEAN
        if isinstance(node, exp.PercentileCont) and not isinstance(node.expression, exp.Literal):
            return _UNKNOWN  # of several parts, a list
        if isinstance(node, _AS_THEIR_NUMBER):
            return DOUBLE if self.value(node.this, columns).type == DOUBLE else _UNKNOWN
        if isinstance(node, exp.Sub):
            both = {self.value(each, columns).type for each in (node.this, node.expression)}
            return BIGINT if both == {DATE} else _UNKNOWN
        if isinstance(node, exp.Extract):
            return BIGINT if node.name.capitalize() in _OF_MOMENTS else _UNKNOWN
        if isinstance(node, exp.TryCast):
            return parsed(node.to.sql(dialect="duckdb"))
        if isinstance(node, exp.RegexpExtract) and isinstance(node.args.get("group"), exp.Array):
            return _UNKNOWN  # a struct
        return (_result(node) if isinstance(node, exp.Anonymous) else RESULTS.get(type(node).__name__)) or _UNKNOWN

    def _truth(self, value: Value) -> str:
        return value.text if value.type == _UNKNOWN else super()._truth(value)

    def _comparing(self, operator: str, node: exp.Binary, columns: Columns) -> Value:
        if isinstance(node.expression, exp.Any):
            raise self.refuse("ANY apart from its comparison")  # written as it is
        return super()._comparing(operator, node, columns)

    def typed(self, value: object, type: Type) -> str:
        return f"CAST({self.constant(value, type)} AS {type})"

    def listed(self, value: Value, numbers: str) -> str:
        # A key of a list of literals takes 20 microseconds, one of these less than one.
        return f"{self.operand(value)} IN (SELECT UNNEST(CAST('[{numbers}]' AS {value.type}[])))"

    def like(self, value: Value, pattern: str) -> str:
        return f"{self.operand(value)} LIKE {self.string(pattern)}"

    def _on_cast(self, node: exp.Cast, columns: Columns) -> Value:
        to = parsed(node.to.sql(dialect="duckdb"))
        value = self.value(node.this, columns)
        if value.is_constant:
            return super()._on_cast(node, columns)
        return Value(f"CAST({value.text} AS {to})", to, True)

    def _double(self, value: Value) -> Value:
        return value if value.type == DOUBLE else Value(f"CAST({value.text} AS DOUBLE)", DOUBLE, True)


def _result(function: exp.Anonymous) -> Type | None:
    return _BY_NAME.get(function.name.lower())


class _Generator(DuckDBGenerator):
    dialect_of: DuckDB
    known: Columns

    TRANSFORMS = {  # noqa: RUF012
        **DuckDBGenerator.TRANSFORMS,
        Nested: lambda self, node: self.dialect_of.nested(node, self.known),
        exp.Column: lambda self, node: enclosed(self.known[node.name]),
        **TRUTHS,
    }
