#!/usr/bin/env python3
"""The structure of the packages: entries a folder, levels of imports a package, cycles of imports. Fails beyond the
rules.

A package's levels are the modules and packages directly in it along the longest chain of imports, what is below them
counted as theirs. Imports under TYPE_CHECKING count. Usage: scripts/structure.py [package ...]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import grimp

ENTRIES, LEVELS = 14, 9
OF_ONE_KIND = {"dqp.planning.rules"}
"""Packages whose entries are all of one kind: as many as there are."""
ENTRANCES = {"__main__", "dbapi"}
"""Names that programs expect at the top: each is a few lines that call what is below."""
Graph = Mapping[str, set[str]]


def packages_of(graph: grimp.ImportGraph) -> list[str]:
    """The packages, those that hold others first."""
    return sorted({module.rpartition(".")[0] for module in graph.modules if "." in module})


def inside(package: str, graph: grimp.ImportGraph) -> Graph:
    """What each direct child of the package imports of the others."""

    def child(module: str) -> str | None:
        return module[len(package) + 1 :].partition(".")[0] if module.startswith(f"{package}.") else None

    children: dict[str, set[str]] = {}
    for module in graph.modules:
        if (importer := child(module)) is None:
            continue
        imported = {child(each) for each in graph.find_modules_directly_imported_by(module)}
        children.setdefault(importer, set()).update(each for each in imported - {None, importer} if each)
    return children


def longest_chain(children: Graph) -> list[str]:
    """From what is imported by nobody down. Raises CycleError."""
    chains: dict[str, list[str]] = {}
    for each in TopologicalSorter(children).static_order():
        below = max((chains[other] for other in sorted(children[each])), key=len, default=[])
        chains[each] = [each, *below]
    return max(chains.values(), key=len, default=[])


def ties(package: str, cycle: list[str], graph: grimp.ImportGraph) -> Iterator[str]:
    """The imports that close a cycle between direct children of a package."""
    for imported, importer in pairwise(cycle):
        below = f"{package}.{importer}", f"{package}.{imported}"
        for module in sorted(graph.modules):
            if module == below[0] or module.startswith(f"{below[0]}."):
                for other in sorted(graph.find_modules_directly_imported_by(module)):
                    if other == below[1] or other.startswith(f"{below[1]}."):
                        yield f"{module} imports {other}"


def module_cycles(graph: grimp.ImportGraph) -> Iterator[list[str]]:
    """A cycle that a package's own module (its ``__init__``) is part of, which ``inside`` does not see."""
    try:
        TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()
    except CycleError as error:
        yield error.args[1]


def main(roots: list[str]) -> int:
    wrong: list[str] = []
    for root in roots:
        graph = grimp.build_graph(root, cache_dir=None)
        wrong += (f"a cycle of imports: {' < '.join(each)}" for each in module_cycles(graph))
        for package in packages_of(graph):
            children = inside(package, graph)
            try:
                chain = longest_chain(children)
            except CycleError as error:
                wrong.append(f"{package}: a cycle of imports, {' < '.join(error.args[1])}")
                wrong += (f"    {each}" for each in ties(package, error.args[1], graph))
                continue
            print(f"{package:32} {len(children):3} entries {len(chain):3} levels   {' > '.join(chain)}")
            if len(children.keys() - ENTRANCES) > ENTRIES and package not in OF_ONE_KIND:
                wrong.append(f"{package} has {len(children)} entries; at most {ENTRIES}: which belong together?")
            if len(chain) > LEVELS:
                wrong.append(f"{package} has {len(chain)} levels of imports; at most {LEVELS}.")
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["dai", "dqp"]))
