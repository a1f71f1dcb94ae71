"""Changes to a registry: functions over a draft, for a caller. Each either succeeds, or raises and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dai.config import RegistryConfig
from dai.errors import ConflictError, DeniedError, LimitError, NotFoundError, ParameterError, QuotaError, TooLargeError
from dai.security.identity import Caller
from dai.service.registry.database import DEPRECATED, MODIFIED, PUBLISHED, RENEWED
from dai.service.registry.draft import Draft
from dai.service.registry.entries import KINDS, METADATA, MOST_DEPTH, Entry, check_readers, checked
from dai.service.registry.mirror import sees
from dai.service.registry.rdf.triples import check_rdf

Operation = Callable[[Draft], object]


@dataclass(frozen=True, slots=True)
class Publication:
    """An entry as it is to be, and how long its lease lasts: ``seconds`` (none: without end)."""

    entry: Entry
    seconds: float | None = None


def publish(
    draft: Draft, caller: Caller, publications: Sequence[Publication], settings: RegistryConfig, *, whole: bool = False
) -> list[Entry]:
    """New entries, or others in the place of those that have their keys. Parents come before what stands below them.
    ``whole``: what else of the owner stands below the first one goes, but for metadata."""
    published = [_publish(draft, caller, each, settings) for each in publications]
    if whole and published:
        keys = {each.key for each in published}
        for each in list(draft.all_below(published[0].key)):
            if each.key not in keys and each.kind != METADATA and draft.get(each.key) is not None:
                draft.drop(each)
    return published


def _publish(draft: Draft, caller: Caller, publication: Publication, settings: RegistryConfig) -> Entry:
    entry = checked(publication.entry)
    if entry.metadata is not None and entry.metadata.form == "rdf":
        check_rdf(entry)
    before = draft.get(entry.key)
    if before is not None:
        if not sees(caller, draft.audience(before)):
            raise DeniedError(f"The key {entry.key!r} belongs to another owner.", hint="Choose another key.")
        own(before, caller)
        if before.kind != entry.kind:
            raise ConflictError(
                f"{entry.key!r} is a {before.kind}, and cannot change its kind.", hint="Choose another key."
            )
    _check_parent(draft, caller, entry)
    if entry.parent is not None and (before is None or before.parent != entry.parent):
        _check_depth(draft, entry)
    owner = caller.name if before is None else before.owner
    new = replace(
        entry,
        owner=owner,
        published=draft.now if before is None else before.published,
        modified=draft.now,
        expires=ends(draft, publication.seconds, settings),
        deprecated=False,
    )
    if (size := len(new.to_bytes())) > settings.entry_bytes:
        raise TooLargeError(f"The entry {entry.key!r} has {size:,} bytes; {settings.entry_bytes:,} are allowed.")
    if (more := new.weight - (0 if before is None else before.weight)) > 0:
        _check_room(draft, owner, more, settings)
    if before is None:
        draft.put(new, PUBLISHED)
    elif replace(new, modified=before.modified, expires=before.expires) != before:
        draft.put(new, MODIFIED)
    elif new.expires != before.expires:
        new = replace(new, modified=before.modified)
        draft.put(new, RENEWED)
    else:
        new = before
    return new


def _check_parent(draft: Draft, caller: Caller, entry: Entry) -> None:
    parent = draft.get(entry.parent) if entry.parent is not None else None
    if entry.parent is not None and (parent is None or not sees(caller, draft.audience(parent))):
        raise NotFoundError(f"There is no entry {entry.parent!r}, which is to be the parent of {entry.key!r}.")
    if entry.kind == METADATA:
        if parent is None:
            raise ParameterError(
                f"The metadata {entry.key!r} must say what it is about.", hint="Give that entry as its parent."
            )
        if any(each.key == entry.key for each in draft.chain(parent)):
            raise ConflictError(f"{entry.key!r} cannot be about itself, or about other metadata about itself.")
        return
    kind = None if parent is None else parent.kind
    if kind not in KINDS[entry.kind]:
        allowed = " or ".join(sorted(f"below a {each}" if each else "by itself" for each in KINDS[entry.kind]))
        raise ParameterError(f"{entry.key!r}: a {entry.kind} must be {allowed}.")
    if parent is not None:
        own(parent, caller)


def _check_depth(draft: Draft, entry: Entry) -> None:
    lower, level = 1, [entry.key]
    while level := [each.key for above in level for each in draft.below(above)]:
        lower += 1
    above = draft.get(str(entry.parent))
    if lower + (0 if above is None else sum(1 for _ in draft.chain(above))) > MOST_DEPTH:
        raise ParameterError(f"{entry.key!r} would be more than {MOST_DEPTH - lower} levels deep.")


def _check_room(draft: Draft, owner: str, more: int, settings: RegistryConfig) -> None:
    if draft.total() + more > settings.entries:
        raise LimitError("The registry is full.", hint=f"It has {settings.entries:,} entries (registry.entries).")
    if draft.owned(owner) + more > settings.owner_entries:
        raise QuotaError(
            f"{owner or 'Anonymous callers'!r} has {settings.owner_entries:,} entries, the most that is allowed.",
            hint="Delete some, or ask the operator of the registry for more (registry.owner_entries).",
        )


def ends(draft: Draft, seconds: float | None, settings: RegistryConfig) -> float | None:
    return None if seconds is None else draft.now + min(seconds, settings.longest_seconds)


def renew(draft: Draft, caller: Caller, keys: Sequence[str], seconds: float, settings: RegistryConfig) -> list[Entry]:
    """The leases of all of them, or of none: NotFoundError where one is not there. What was deprecated is current."""
    renewed = []
    for each in keys:
        entry = there(draft, each, caller)
        new = replace(entry, expires=ends(draft, seconds, settings), deprecated=False)
        draft.put(new, MODIFIED if entry.deprecated else RENEWED)
        renewed.append(new)
    return renewed


def deprecate(draft: Draft, caller: Caller, key: str) -> Entry:
    entry = replace(there(draft, key, caller), deprecated=True, modified=draft.now, expires=None)
    draft.put(entry, DEPRECATED)
    return entry


def restrict(draft: Draft, caller: Caller, key: str, readers: tuple[str, ...]) -> Entry:
    """Who may see it, and all that stands below it, from now on."""
    check_readers(readers)
    entry = replace(there(draft, key, caller), readers=readers, modified=draft.now)
    draft.put(entry, MODIFIED)
    return entry


def delete(draft: Draft, caller: Caller, keys: Sequence[str]) -> None:
    """With all that stands below them. All of them, or none."""
    entries = [there(draft, each, caller) for each in keys]
    for each in entries:
        if draft.get(each.key) is not None:
            draft.drop(each)


def end_leases(draft: Draft) -> None:
    """What nobody has renewed is deleted or deprecated."""
    for each in draft.due():
        if draft.get(each.key) is None:
            continue
        if each.deprecates:
            draft.put(replace(each, deprecated=True, expires=None, modified=draft.now), DEPRECATED)
        else:
            draft.drop(each)


def there(draft: Draft, key: str, caller: Caller) -> Entry:
    """An entry of the caller's. NotFoundError where the caller sees none, DeniedError where it is somebody else's."""
    entry = draft.get(key)
    if entry is None or not sees(caller, draft.audience(entry)):
        raise missing(key)
    own(entry, caller)
    return entry


def own(entry: Entry, caller: Caller) -> None:
    if not caller.sees(entry.owner):
        raise DeniedError(
            f"{entry.key!r} belongs to another owner.", hint="Only its owner and administrators may change it."
        )


def missing(key: str) -> NotFoundError:
    return NotFoundError(f"There is no entry {key[:200]!r}; its lease may have ended.")
