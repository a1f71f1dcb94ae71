"""Publisher assertions: two businesses are related. The owner of either may assert it; it counts when both owners do
(UDDI 2.04 API, appendix A)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dai.errors import DeniedError, NotFoundError
from dai.service.registry import operations
from dai.service.registry.access import Access
from dai.service.registry.draft import Draft
from dai.service.registry.entries import Entry, Reference, new_key
from dai.service.registry.mirror import Mirror
from dai.service.registry.uddi import structures
from dai.service.registry.uddi.faults import Refused, report
from dai.service.registry.uddi.finding import Search, most_of
from dai.service.registry.uddi.structures import iri, key_of, reference, references

COMPLETE = "status:complete"
_STATUS = (COMPLETE, "status:toKey_incomplete", "status:fromKey_incomplete")
"""The second: who owns ``toKey`` has not said it."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """Keys of businesses, and how they are related."""

    start: str
    end: str
    relation: Reference

    def message(self) -> dict[str, Any]:
        return {
            "fromKey": key_of(self.start),
            "toKey": key_of(self.end),
            "keyedReference": reference(self.relation),
        }


def _assertions(said: dict[str, Any]) -> list[Assertion]:
    assertions = []
    for each in said.get("publisherAssertion", []):
        relations = references([each.get("keyedReference", {})])
        if not relations[0].tmodel:
            raise Refused("E_fatalError", "A publisherAssertion needs a keyedReference with a tModelKey.")
        assertions.append(Assertion(iri(each.get("fromKey", "")), iri(each.get("toKey", "")), relations[0]))
    return assertions


def _of(entry: Entry) -> Assertion:
    """By JSON it may have been published without what it needs: then it relates nothing."""
    start, end = (str(entry.properties.get(name, "")) for name in ("from", "to"))
    return Assertion(start, end, next(iter(entry.categories), Reference("", "")))


def _said_by(mirror: Mirror | Draft, access: Access, businesses: Iterable[Entry]) -> Iterator[Entry]:
    """The caller's assertions: they are below businesses of the caller."""
    for business in businesses:
        for each in mirror.below(business.key):
            if each.kind == "assertion" and each.owner == access.caller.name:
                yield each


def _own_businesses(mirror: Mirror, access: Access) -> list[Entry]:
    shown = mirror.shown(mirror.having(("kind", "business")), access.caller)
    return [each for each in shown if each.owner == access.caller.name]


def _business(there: Mirror | Draft, key: str, access: Access) -> Entry:
    entry = there.seen(key, access.caller) if isinstance(there, Mirror) else there.get(key)
    if entry is None or entry.kind != "business":
        raise NotFoundError(f"There is no business with the key {key_of(key)!r}.")
    return entry


def _say(draft: Draft, access: Access, assertion: Assertion) -> None:
    ends = [_business(draft, each, access) for each in (assertion.start, assertion.end)]
    above = next((each for each in ends if each.owner == access.caller.name), None)
    if above is None:
        raise DeniedError("You own neither of the businesses.", hint="Only the owner of one of them may relate them.")
    if any(_of(each) == assertion for each in _said_by(draft, access, ends)):
        return
    entry = Entry(
        key=new_key(),
        kind="assertion",
        parent=above.key,
        properties={"from": assertion.start, "to": assertion.end},
        categories=(assertion.relation,),
    )
    operations.publish(draft, access.caller, [operations.Publication(entry)], access.registry.settings)


async def add(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    access.may("write", "change")
    said = _assertions(asked)

    def change(draft: Draft) -> None:
        for each in said:
            _say(draft, access, each)

    await access.change(change)
    return report(0, {"errCode": "E_success"})


async def delete(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    access.may("write", "change")
    said = _assertions(asked)

    def change(draft: Draft) -> None:
        for each in said:
            ends = [entry for key in (each.start, each.end) if (entry := draft.get(key)) is not None]
            keys = [entry.key for entry in _said_by(draft, access, ends) if _of(entry) == each]
            if not keys:
                raise Refused("E_assertionNotFound", f"The caller has not related {key_of(each.start)!r} so.")
            operations.delete(draft, access.caller, keys)

    await access.change(change)
    return report(0, {"errCode": "E_success"})


async def replace_all(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Replaces all of the caller's assertions by these."""
    access.may("write", "change")
    said = _assertions(asked)
    businesses = await access.read(lambda mirror: _own_businesses(mirror, access))

    def change(draft: Draft) -> None:
        for each in list(_said_by(draft, access, businesses)):
            if _of(each) not in said:
                operations.delete(draft, access.caller, [each.key])
        for assertion in said:
            _say(draft, access, assertion)

    await access.change(change)
    return await own(access, name, asked)


async def own(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    access.may("write", "change")

    def read(mirror: Mirror) -> dict[str, Any]:
        said = _said_by(mirror, access, _own_businesses(mirror, access))
        return {"authorizedName": access.caller.name, "publisherAssertion": [_of(each).message() for each in said]}

    return await access.read(read)


def _statuses(mirror: Mirror, access: Access, business: str) -> Iterator[tuple[Assertion, str, list[str]]]:
    """The assertions about a business, by anybody; whether both owners made them; and which of their ends are the
    caller's."""
    seen: set[Assertion] = set()
    entries = [mirror.entries[key] for key in sorted(mirror.having(("related", business)))]
    for entry in entries:
        assertion = _of(entry)
        ends = [mirror.seen(each, access.caller) for each in (assertion.start, assertion.end)]
        if assertion in seen or None in ends:
            continue
        seen.add(assertion)
        owners = [each.owner for each in ends if each is not None]
        said = {each.owner for each in entries if _of(each) == assertion}
        status = COMPLETE if said >= set(owners) else _STATUS[1] if owners[0] in said else _STATUS[2]
        yield assertion, status, [name for name, owner in zip(("fromKey", "toKey"), owners, strict=True)
                                  if owner == access.caller.name]  # fmt: skip


async def status(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    access.may("write", "change")
    wanted = asked.get("completionStatus", "")
    if wanted and wanted not in _STATUS:
        raise Refused("E_invalidCompletionStatus", f"{wanted[:100]!r} is none of {', '.join(_STATUS)}.")

    def read(mirror: Mirror) -> dict[str, Any]:
        items: dict[Assertion, dict[str, Any]] = {}
        for business in _own_businesses(mirror, access):
            for assertion, state, owned in _statuses(mirror, access, business.key):
                if not wanted or state == wanted:
                    message = assertion.message()
                    keys = {each: message[each] for each in owned}
                    items[assertion] = {"completionStatus": state, **message, "keysOwned": keys}
        return {"assertionStatusItem": list(items.values())}

    return await access.read(read)


async def related(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The businesses that both owners say to be related to one."""
    key = iri(asked.get("businessKey", ""))
    relation = references([asked["keyedReference"]])[0] if "keyedReference" in asked else None
    most = most_of(asked)

    def find(mirror: Mirror) -> dict[str, Any]:
        business = _business(mirror, key, access)
        related: dict[str, dict[str, list[Reference]]] = {}
        for assertion, state, _ in _statuses(mirror, access, business.key):
            if state == COMPLETE and relation in (None, assertion.relation):
                for direction, there, other in (
                    ("fromKey", assertion.start, assertion.end),
                    ("toKey", assertion.end, assertion.start),
                ):
                    if there == key:
                        related.setdefault(other, {}).setdefault(direction, []).append(assertion.relation)
        qualified = {name: asked[name] for name in ("findQualifiers",) if name in asked}
        shown = Search(mirror, access.caller, "business", qualified).matching(related)
        infos = [
            {
                **structures.texts_of(each),
                "businessKey": key_of(each.key),
                "sharedRelationships": [
                    {"direction": direction, "keyedReference": [reference(one) for one in relations]}
                    for direction, relations in related[each.key].items()
                ],
            }
            for each in shown
        ]
        said: dict[str, Any] = {"truncated": "true"} if len(infos) > most else {}
        return said | {"businessKey": key_of(key), "relatedBusinessInfos": {"relatedBusinessInfo": infos[:most]}}

    return await access.read(find)
