#!/usr/bin/env python3
"""Writes docs/conformance.md: what the specification asks for, what stands here, and which tests show it.

Parameters and ports come from the declarations of the activities, the forms of documents from the schemas, refusals
from the errors in the source that an activity can reach, tests from the source of ``tests/``. Only the names in
``SPECIFIED`` are written by hand. Usage: scripts/conformance.py [--check]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from evidence import ROOT, Refusal, Test, module, path_of, reached, refusals, tests
from lxml import etree

from dai.perform.activity import ACTIVITIES, ANY, fields_of
from dai.perform.parser import DIALECTS, xsd
from dai.perform.reference import how_often, kind_of, nested_elements, place_of

PAGE = ROOT / "docs" / "conformance.md"
CORPUS = ROOT / "tests/conformance/documents/corpus"
SPECIFIED = {
    "Relational": """sqlQueryStatement sqlUpdateStatement sqlStoredProcedure sqlResultsToXML sqlResultsToCSV
        sqlResultsToArrow sqlBulkLoadRowSet relationalResourceManagement extractDatabaseSchema extractPhysicalSchema
        sqlBag sqlResilient""",
    "XML data": "xPathStatement xQueryStatement xUpdateStatement xmlCollectionManagement xmlResourceManagement",
    "Files": "fileAccessActivity fileWritingActivity directoryAccess fileManipulation",
    "Transformation": """blockAggregator stringTokenizer gzipCompression zstdCompression zipArchive xslTransform
        TupleProjection TupleSelect TupleArithmeticProjection TupleUnionAll TupleMergeJoin TupleSplit TupleSort
        TupleGroupBy Head Tee""",
    "Delivery and streams": """deliverToResponse deliverToURL deliverFromURL deliverToFile deliverFromFile deliverToSMTP
        deliverToGFTP deliverFromGFTP deliverToResourceProperty dataStore outputStream inputStream deliverToGDT
        deliverFromGDT""",
    "Control and test": "Echo Sleep Counter",
}
"""The activities that the specification names, by subject."""
MOST_SHOWN = 8
"""Tests in a cell of a table."""
MOST_QUOTED = 3
"""Messages that one text can quote; a text that more of them have says nothing."""
LANGUAGE = ("parser", "validation", "graph", "preview")
"""The modules of dai.perform that refuse documents."""
BEHIND = ("dai.perform.", "dai.drivers.directory", "dai.drivers.collections")
"""Where an activity's refusals are looked for: the messages of databases are not listed."""
APART = {f"dai.perform.{each}" for each in (*LANGUAGE, "activity", "pipeline", "progress")}
"""Not among them: what every activity shares."""
IN_FULL = ("tests/activities/", "tests/conformance/", "tests/test_preview.py")
"""Tests in these are named one by one, in others by file."""


@cache
def tests_of(element: str) -> tuple[Test, ...]:
    """Those that write the element, or name the activity or its class."""
    kind = element[0].upper() + element[1:]
    is_word = re.search("[a-z][A-Z]", element) is None
    pattern = re.compile(rf"<{element}\b" + (rf'|^{element}( [\w="]+)?$' if is_word else rf"|\b{element}\b"))
    return tuple(
        each for each in tests() if any(map(pattern.search, each.strings)) or (not is_word and kind in each.names)
    )


def shown_by(refusal: Refusal, among: tuple[Test, ...]) -> list[Test]:
    """The tests that quote the message, or expect a part of it that few messages have."""
    return [each for each in among if any(refusal in quoted(text) for text in each.strings if 8 <= len(text) <= 200)]


@cache
def quoted(text: str) -> frozenset[Refusal]:
    """The refusals of which a text or pattern of a test has two words or more, where few messages have them."""
    pieces = [words_of(each) for each in re.split(r"\.\*\??|\.\+|[()|]", text.replace("\\", ""))]
    long = [each for each in pieces if len(each) > 1]
    if not long:
        return frozenset()
    fitting = [each for each in all_refusals() if all(_has(words_of(each.message), piece) for piece in long)]
    return frozenset(fitting if len(fitting) <= MOST_QUOTED else ())


@cache
def words_of(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip(".,:;?!^$'\"()<>").lower() for each in text.split())))


def _has(message: tuple[str, ...], piece: tuple[str, ...]) -> bool:
    """The words follow each other in the message; ``…`` is any word, and at least two are its own."""
    for start in range(len(message) - len(piece) + 1):
        pairs = list(zip(message[start:], piece, strict=False))
        if all("…" in of or of == word for of, word in pairs) and sum("…" not in of for of, _ in pairs) > 1:
            return True
    return False


@cache
def all_refusals() -> frozenset[Refusal]:
    return frozenset({*refusals_of_language(), *(each for name in ACTIVITIES for each in refusals_of(name))})


# --- The page -------------------------------------------------------------------------------------------------------

HEAD = """# Conformance

`scripts/conformance.py` writes this page; do not edit it. Parameters and ports come from the declarations of the
activities, document forms from the schemas, refusals from the source, tests from the source of the tests.
[activities.md](activities.md) explains each activity.

It is for authors of perform documents who want to know which parts of OGSA-DAI's language run, and which are refused.

- The language refuses parts of an activity that are not declared, have another type, are missing or occur twice
  ([below](#refusals-of-the-language)). The page does not list refusals by a database.
- `…` in a message stands for a value.
- *Shown by* names the tests that expect a part of the message; without a test it is empty.
"""


def page() -> str:
    specified = [name for names in SPECIFIED.values() for name in names.split()]
    extra = [name for name in ACTIVITIES if name not in specified and declared_here(name)]
    lines = [HEAD, "## Activities", ""]
    missing = [name for name in specified if name not in ACTIVITIES]
    lines += [
        f"{len(specified) - len(missing)} of the {len(specified)} activities that the specification names are here."
    ]
    lines += [f"Missing: {', '.join(f'`{name}`' for name in missing)}." if missing else "None is missing."]
    every = [each for each in tests() if each.every]
    lines += ["", f"These run over all of them: {listed(every)}.", ""]
    lines += ["| activity | subject | here | resources | refusals | tests |", "| --- | --- | --- | --- | --- | --- |"]
    subjects = {name: subject for subject, names in SPECIFIED.items() for name in names.split()}
    for name in [*specified, *extra]:
        lines.append(_row(name, subjects.get(name, "not in the specification")))
    lines += ["", *corpus(), *forms()]
    for name in [*specified, *extra]:
        lines += section(name) if name in ACTIVITIES else [f"## {name}", "", "Missing.", ""]
    return "\n".join(lines)


def corpus() -> list[str]:
    """What becomes of the documents of the corpus; which of them lack activities."""
    missing = [name for names in SPECIFIED.values() for name in names.split() if name not in ACTIVITIES]
    texts = {path.stem: path.read_text() for path in sorted(CORPUS.glob("*.xml"))}
    waiting = {stem: [name for name in missing if f"<{name} " in text] for stem, text in texts.items()}
    waiting = {stem: names for stem, names in waiting.items() if names}
    refused = [stem for stem, text in texts.items() if re.search("^(refused|ends): ", text, re.MULTILINE)]
    count = len(texts) - len({*refused, *waiting})
    return [
        "## Corpus",
        "",
        f"[tests/conformance/documents/corpus](../tests/conformance/documents/corpus) has {len(texts)} documents as",
        "users of the original wrote them. `tests/conformance/test_corpus.py` sends each of them, unchanged:",
        f"{count} run; {len({*refused} - {*waiting})} are refused or fail, as they should;",
        f"{len(waiting)} need an activity that is not here:" if waiting else "none needs an activity that is not here.",
        "",
        *(f"- {stem}: {', '.join(f'`{each}`' for each in names)}" for stem, names in waiting.items()),
        "",
    ]


def declared_here(name: str) -> bool:
    return str(ACTIVITIES[name].__module__).startswith("dai.")


def _row(name: str, subject: str) -> str:
    if name not in ACTIVITIES:
        return f"| [`{name}`](#{name.lower()}) | {subject} | **missing** | | | |"
    role = {None: "databases", ANY: "all"}.get(ACTIVITIES[name].role, ACTIVITIES[name].role)
    count = len(refusals_of(name))
    return f"| [`{name}`](#{name.lower()}) | {subject} | yes | {role} | {count} | {len(tests_of(name))} |"


def _is_behind(name: str) -> bool:
    return name.startswith(BEHIND) and name not in APART


@cache
def refusals_of(name: str) -> list[Refusal]:
    if not declared_here(name):
        return []
    path = path_of(ACTIVITIES[name].__module__)
    assert path is not None, name
    return refusals(reached(path, ACTIVITIES[name].__name__, _is_behind))


@cache
def refusals_of_language() -> list[Refusal]:
    paths = [path for name in LANGUAGE if (path := path_of(f"dai.perform.{name}"))]
    return refusals(node for path in paths for nodes in module(path).definitions.values() for node in nodes)


def section(name: str) -> list[str]:
    declared: Any = ACTIVITIES[name]
    lines = [f"## {name}", "", "| in the document | is | how often |", "| --- | --- | --- |"]
    for prefix, holder in [("", declared), *((f"`{element}`: ", kind) for element, kind in nested_elements(declared))]:
        lines += [f"| {prefix}{place_of(each)} | {kind_of(each)} | {how_often(each)} |" for each in fields_of(holder)]
    if declared.raw:
        lines += [
            "",
            f"Not in a response, only as an input: {', '.join(f'`{each}`' for each in sorted(declared.raw))}.",
        ]
    among = tests_of(name)
    lines += [
        "",
        *_refusals(refusals_of(name), among),
        f"Tests: {listed(among) or 'only those over all activities'}.",
        "",
    ]
    return lines


def _refusals(of: list[Refusal], among: tuple[Test, ...]) -> list[str]:
    if not of:
        return []
    lines = ["| refused | code | shown by |", "| --- | --- | --- |"]
    for each in of:
        names = [f"`{test.name or Path(test.path).name}`" for test in shown_by(each, among)]
        message = each.message.strip().replace("|", "\\|").replace("\n", " ").replace("<", "\\<")
        lines.append(
            f"| {message} | `{each.code}` | {', '.join(names[:MOST_SHOWN])}{' …' if len(names) > MOST_SHOWN else ''} |"
        )
    return [*lines, ""]


def listed(among: Iterable[Test]) -> str:
    by_file: dict[str, list[str]] = {}
    for each in among:
        by_file.setdefault(each.path, []).append(each.name)
    documents = [path for path, names in by_file.items() if names == [""]]
    full = [
        f"[{path.removeprefix('tests/')}](../{path}): {', '.join(f'`{name}`' for name in names)}"
        for path, names in by_file.items()
        if path.startswith(IN_FULL) and path not in documents
    ]
    if documents:
        full.append(
            "documents " + ", ".join(f"[{Path(path).parent.name}/{Path(path).stem}](../{path})" for path in documents)
        )
    others = [
        f"[{path.removeprefix('tests/')}](../{path})"
        for path in by_file
        if not path.startswith(IN_FULL) and path not in documents
    ]
    return "; ".join([*full, *([f"also in {', '.join(others)}"] if others else [])])


def forms() -> list[str]:
    """The elements of each dialect that are not activities."""
    lines = ["## Documents", ""]
    around = tuple(
        each for each in tests() if "/hostile/" not in each.path and re.match(r"tests/(test_|conf)", each.path)
    )
    for dialect, constant in zip(DIALECTS, ("GDS", "WSI", "PREVIEW"), strict=True):
        lines += [
            f"### Dialect {dialect.name}",
            "",
            f"Namespace `{dialect.namespace}`, root `{dialect.request}`, answered by `{dialect.response}`.",
            "",
        ]
        inside = [
            each for each in around if constant in each.names or any(dialect.namespace in text for text in each.strings)
        ]
        lines += [
            f"Tests: {listed(inside)}.",
            "",
            "| element | attributes | holds | tests |",
            "| --- | --- | --- | --- |",
        ]
        for element, attributes, children in _elements(xsd(dialect), dialect.request):
            writing = [each for each in around if each.writes(element)] if element != dialect.request else []
            shown = ", ".join(f"`{each.name or Path(each.path).stem}`" for each in writing[:MOST_SHOWN])
            more = " …" if len(writing) > MOST_SHOWN else ""
            lines.append(f"| `{element}` | {attributes} | {children} | {shown}{more} |")
        lines.append("")
    return [*lines, "### Refusals of the language", "", *_refusals(refusals_of_language(), around)]


XS = "{http://www.w3.org/2001/XMLSchema}"


def _elements(schema: bytes, root: str) -> Iterator[tuple[str, str, str]]:
    """Name, attributes (``?``: optional) and contents of each element that is not an activity, the root first."""
    tree = etree.fromstring(schema)
    types = {each.get("name"): each for each in tree.findall(f"{XS}complexType")}
    todo = [each for each in tree.findall(f"{XS}element") if each.get("name") not in ACTIVITIES]
    todo.sort(key=lambda each: each.get("name") != root)
    for node in todo:
        kind = node.find(f"{XS}complexType")
        kind = types.get(node.get("type")) if kind is None else kind
        if kind is None:
            yield node.get("name", ""), "", "text"
            continue
        holder = node if kind.getparent() is node else None
        below = [each for each in kind.iter(f"{XS}element") if _holder(each) is holder]
        groups = [each for each in kind.iter(f"{XS}group") if _holder(each) is holder]
        attributes = [
            f"`{each.get('name')}`{'' if each.get('use') == 'required' else '?'}"
            for each in kind.findall(f"{XS}attribute")
        ]
        contents = [f"`{each.get('name') or each.get('ref')}`" for each in below]
        contents += ["activities"] * bool(groups) + ["text"] * (kind.get("mixed") == "true")
        yield node.get("name", ""), ", ".join(attributes), ", ".join(contents)
        todo.extend(each for each in below if each.get("name") not in (None, "documentation", "value"))


def _holder(node: etree._Element) -> etree._Element | None:
    return next(iter(node.iterancestors(f"{XS}element")), None)


def main() -> int:
    fresh = page()
    if PAGE.exists() and PAGE.read_text() == fresh:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE.relative_to(ROOT)} is stale; write it with: scripts/conformance.py", file=sys.stderr)
        return 1
    PAGE.write_text(fresh)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
