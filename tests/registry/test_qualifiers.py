"""``find_service``, ``find_tModel`` and ``find_binding`` with every combination of qualifiers, against a model of
lists. ``find_business``, over SOAP, is in ``test_uddi``."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from dai.security.identity import Caller
from dai.service.registry.entries import Entry, Reference
from dai.service.registry.mirror import Mirror
from dai.service.registry.uddi.faults import Refused
from dai.service.registry.uddi.finding import Search
from tests.registry.test_uddi import (
    ASKED_BAGS,
    ASKED_NAMES,
    BAGS,
    KEYS,
    MATCHES,
    NAMES,
    SCOPES,
    SORTS,
    T1,
    T2,
    bag,
    fits_bag,
    fits_name,
    texts,
)

COMBINATIONS = [tuple(itertools.chain(*each)) for each in itertools.product(MATCHES, KEYS, SORTS, SCOPES)]
MODELS = [[], [T1], [T2], [T1, T2]]
"""What a binding implements, or a tModelBag asks for."""


def iri(key: str) -> str:
    return f"urn:{key}"


def references(said: Iterable[tuple[str, str]]) -> tuple[Reference, ...]:
    return tuple(Reference(iri(tmodel), value) for tmodel, value in said)


def found(mirror: Mirror, kind: str, qualifiers: tuple[str, ...], **asked: Any) -> list[str]:
    said = {"findQualifiers": {"findQualifier": list(qualifiers)}, **asked}
    return [each.key for each in Search(mirror, Caller("a"), kind, said).matching()]


def ordered(entries: list[Entry], keys: list[str], qualifiers: tuple[str, ...]) -> bool:
    """Whether they stand as the qualifiers say."""
    by_key = {each.key: each for each in entries}
    listed = [by_key[each] for each in keys]
    names = [each.name if "caseSensitiveMatch" in qualifiers else each.name.lower() for each in listed]
    times = [each.modified for each in listed]
    if "sortByNameDesc" in qualifiers:
        return names == sorted(names, reverse=True)
    if "sortByDateDesc" in qualifiers:
        return times == sorted(times, reverse=True)
    return names == sorted(names)


def said(models: list[str]) -> dict[str, Any]:
    return {"tModelBag": {"tModelKey": models}}


def implements(bound: list[list[str]], asked: list[str], qualifiers: tuple[str, ...]) -> bool:
    enough = any if "orAllKeys" in qualifiers else all
    return not asked or any(enough(each in there for each in asked) for there in bound)


@pytest.mark.parametrize("kind", ["service", "tmodel"])
def test_names_bags_and_tmodels(kind: str) -> None:
    known = []
    entries = []
    for number, name in enumerate(NAMES * 3):
        own, bound = BAGS[number % 5], [MODELS[number % 4], MODELS[number // 4 % 4]]
        key = f"urn:{number}"
        entries.append(
            Entry(key=key, kind=kind, names=((name, ""),), categories=references(own), identifiers=references(own),
                  modified=float(number))
        )  # fmt: skip
        if kind == "service":
            entries += [
                Entry(key=f"{key}:{at}", kind="binding", parent=key, implements=tuple(map(iri, each)))
                for at, each in enumerate(bound)
            ]
        known.append((key, name, own, bound))
    mirror = Mirror(entries)
    questions = list(itertools.product(ASKED_NAMES, ASKED_BAGS, MODELS))
    for at, qualifiers in enumerate(COMBINATIONS):
        for names, asked, models in questions[at % 5 :: 5]:
            more = said(models) if kind == "service" else {"identifierBag": bag(*asked)}
            given = found(mirror, kind, qualifiers, name=[{"text": each["_value_1"]} for each in texts(*names)],
                          categoryBag=bag(*asked), **more)  # fmt: skip
            fitting = {
                key
                for key, name, own, bound in known
                if fits_name(name, names, qualifiers)
                and fits_bag(own, asked, qualifiers, every="orAllKeys" not in qualifiers)
                and (kind == "service" or fits_bag(own, asked, qualifiers, every="andAllKeys" in qualifiers))
                and (kind == "tmodel" or implements(bound, models, qualifiers))
            }
            assert set(given) == fitting, (qualifiers, names, asked, models)
            assert len(given) == len(fitting)
            assert ordered(entries, given, qualifiers)


def test_bindings_by_what_they_implement() -> None:
    service = Entry(key="urn:s", kind="service", names=(("s", ""),))
    bindings = [
        Entry(key=f"urn:b:{at}", kind="binding", parent="urn:s", implements=tuple(map(iri, each)))
        for at, each in enumerate(MODELS)
    ]
    mirror = Mirror([service, *bindings])
    for qualifiers, models in itertools.product(COMBINATIONS, MODELS):
        fitting = {f"urn:b:{at}" for at, each in enumerate(MODELS) if implements([each], models, qualifiers)}
        assert set(found(mirror, "binding", qualifiers, **said(models))) == fitting, (qualifiers, models)


@pytest.mark.parametrize(
    "asked",
    [
        {"categoryBag": {"keyedReference": [{"tModelKey": T1, "keyValue": str(each)} for each in range(101)]}},
        {"identifierBag": {"keyedReference": [{"tModelKey": T1, "keyValue": str(each)} for each in range(101)]}},
        {"tModelBag": {"tModelKey": [f"uuid:{each}" for each in range(101)]}},
    ],
)
def test_a_search_has_few_keys(asked: dict[str, Any]) -> None:
    """Each is compared with all of each entry."""
    with pytest.raises(Refused, match="101 keys and references are asked for"):
        Search(Mirror(), Caller("a"), "business", asked)
