"""What the source of the project shows: the errors that a definition can raise, and the tests.

Everything is read from the syntax trees; nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import dai.errors

ROOT = Path(__file__).parents[1]


# --- Source ---------------------------------------------------------------------------------------------------------


@dataclass
class Module:
    """What stands at the top of a module, and what it imports: name to (module, name; empty: the module itself)."""

    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@cache
def module(path: Path) -> Module:
    source = Module()
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            source.definitions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in ast.walk(node):
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    source.definitions.setdefault(target.id, []).append(node)
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and each.module:
            for alias in each.names:
                source.imports[alias.asname or alias.name] = (each.module, alias.name)
    return source


@cache
def path_of(name: str) -> Path | None:
    """Of a module of this project."""
    below = ROOT / Path(*name.split("."))
    return next((path for path in (below.with_suffix(".py"), below / "__init__.py") if path.is_file()), None)


def reached(path: Path, name: str, follow: Callable[[str], bool]) -> Iterator[ast.stmt]:
    """The definition of a name and, in turn, those that it names; in the modules that ``follow`` accepts, too."""
    seen: set[tuple[Path, str]] = set()
    todo = [(path, name)]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        source = module(at[0])
        for node in source.definitions.get(at[1], ()):
            yield node
            todo.extend((at[0], each) for each in names_in(node) if each in source.definitions)
            for base, attribute in attributes_in(node):
                imported, imported_name = source.imports.get(base, ("", ""))
                if follow(f"{imported}.{imported_name}") and (inner := path_of(f"{imported}.{imported_name}")):
                    todo.append((inner, attribute))
            for each in names_in(node) & source.imports.keys():
                imported, imported_name = source.imports[each]
                if follow(imported) and (inner := path_of(imported)):
                    todo.append((inner, imported_name))


@cache
def walked(node: ast.AST) -> tuple[ast.AST, ...]:
    """What is in it, which several ask for."""
    return tuple(ast.walk(node))


@cache
def names_in(node: ast.AST) -> frozenset[str]:
    names = {each.id for each in walked(node) if isinstance(each, ast.Name)}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names |= {each.arg for each in node.args.args}  # fixtures
    return frozenset(names)


@cache
def attributes_in(node: ast.AST) -> frozenset[tuple[str, str]]:
    found = (each for each in walked(node) if isinstance(each, ast.Attribute))
    return frozenset((each.value.id, each.attr) for each in found if isinstance(each.value, ast.Name))


# --- Refusals -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Refusal:
    code: str
    message: str


def refusals(nodes: Iterator[ast.stmt]) -> list[Refusal]:
    """The errors of the project that these definitions raise, with a message that says why."""
    return sorted({refusal for node in nodes for refusal in _raised(node)})


def _raised(definition: ast.stmt) -> Iterator[Refusal]:
    texts = {
        target.id: message
        for node in walked(definition)
        if isinstance(node, ast.Assign) and (message := _message(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in walked(definition):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        kind = getattr(dai.errors, "DocumentError" if called == "_error" else called, None)
        if not (isinstance(kind, type) and issubclass(kind, dai.errors.DaiError)):
            continue
        parts = (texts.get(each.id) if isinstance(each, ast.Name) else _message(each) for each in node.args)
        if (message := next(filter(None, parts), None)) and kind is not dai.errors.ConfigurationError:
            yield Refusal(kind.code, message)


def _message(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        pieces = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
        return "".join(map(str, pieces))
    return None


# --- Tests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """A test function (its strings and the names it uses), or a document that one reads (without a name). ``every``: it
    runs over the table of activities."""

    path: str
    name: str
    strings: tuple[str, ...]
    names: frozenset[str] = frozenset()
    every: bool = False

    def writes(self, element: str) -> bool:
        return any(re.search(rf"<{element}\b", text) for text in self.strings)


@cache
def tests() -> tuple[Test, ...]:
    return tuple(_tests())


def _tests() -> Iterator[Test]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        relative = path.relative_to(ROOT).as_posix()
        for name in module(path).definitions:
            if name.startswith("test_"):
                nodes = list(reached(path, name, lambda _: False))
                strings = tuple(dict.fromkeys(text for node in nodes for text in _strings(node)))
                names = frozenset[str]().union(*map(names_in, nodes))
                yield Test(relative, name, strings, names, _over_the_table(nodes[0]))
    for path in sorted((ROOT / "tests").rglob("documents/**/*.xml")):
        content = path.read_bytes()
        text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")
        yield Test(path.relative_to(ROOT).as_posix(), "", (text, *re.findall("^says: (.*)", text, re.MULTILINE)))


@cache
def _strings(node: ast.AST) -> tuple[str, ...]:
    constants = (each.value for each in walked(node) if isinstance(each, ast.Constant))
    return tuple(each for each in constants if isinstance(each, str))


def _over_the_table(node: ast.stmt) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any("ACTIVITIES" in names_in(each) for each in decorators)
