"""Which form an answer takes: ``Accept`` (RFC 9110 section 12.5.1) or ``?format=``. Pure functions on values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from dai.errors import NotAcceptableError, ParameterError
from dai.formats import FORMATS, Format, form_of, format_named
from dai.formats.compression import quality
from dai.plugins import nearest

DOCUMENT = "application/xml"
_JSON = ("application/json", "application/problem+json")
_ALIASES = {"text/xml": DOCUMENT} | {alias: each.media_type for each in FORMATS.values() for alias in each.aliases}


_KEPT = 1_000
"""Characters of an Accept header at most whose ranges are remembered: those of a longer one would take a megabyte."""


def accepted(accept: str | None) -> tuple[tuple[str, float], ...]:
    """Media ranges and their weights, the more specific ones first. None accepts everything."""
    return _remembered(accept) if accept is None or len(accept) <= _KEPT else _ranges(accept)


def _ranges(accept: str | None) -> tuple[tuple[str, float], ...]:
    if accept is None or not accept.strip():
        return (("*/*", 1.0),)
    ranges: dict[str, float] = {}
    for member in accept.split(","):
        media_range, *parameters = (part.strip().lower() for part in member.split(";"))
        if not media_range:
            continue
        media_range = _ALIASES.get(media_range, media_range)
        ranges[media_range] = max(quality(parameters), ranges.get(media_range, 0.0))
    return tuple(sorted(ranges.items(), key=lambda item: item[0].count("*")))


_remembered = lru_cache(1024)(_ranges)


def best(accept: str | None, offers: Sequence[str]) -> str | None:
    """The offer of the highest weight, the first of equals; None where none is accepted."""
    ranges = accepted(accept)
    offered, most = None, 0.0
    for offer in offers:
        for media_range, weight in ranges:
            if media_range in (offer, "*/*") or (media_range.endswith("/*") and offer.startswith(media_range[:-1])):
                if weight > most:
                    offered, most = offer, weight
                break
    return offered


def accepts_xml(accept: str | None) -> bool:
    """XML was asked for by name, and JSON not more than that: an error is a response document then."""
    weights = dict(accepted(accept))
    return 0 < weights.get(DOCUMENT, 0.0) >= max(weights.get(each, 0.0) for each in _JSON)


@cache
def media_types() -> dict[str, str]:
    """The media types of the formats by name; the first is the default."""
    return {each.name: each.media_type for each in FORMATS.values()}


@lru_cache(256)
def tabular(accept: str | None, name: str | None, first: str | None = None) -> Format:
    """The format for tuples, of ``?format=`` or else of Accept; where several are as welcome that named ``first``, by
    default the first of FORMATS. NotAcceptableError lists them all."""
    if name is not None:
        return format_of_name(name)
    known = media_types()
    offers = [*([known[first]] if first else ()), *known.values()]
    chosen = form_of(best(accept, offers) or "")
    if chosen is None:
        raise not_acceptable(accept, offers)
    return format_named(chosen)


def format_of_name(name: str) -> Format:
    """ParameterError suggests the nearest name."""
    if name not in FORMATS:
        raise ParameterError(f"There is no format {name!r}.", hint=nearest(name, list(FORMATS)))
    return format_named(name)


def names_a_format(accept: str | None) -> bool:
    """Accept leaves no doubt that it wants a certain form: it has no ``*/*``."""
    return all(media_range != "*/*" for media_range, weight in accepted(accept) if weight > 0)


def not_acceptable(accept: str | None, offers: Sequence[str]) -> NotAcceptableError:
    """Names what could be had instead."""
    return NotAcceptableError(
        f"The format {accept!r} is not possible here.", hint=f"Possible: {', '.join(dict.fromkeys(offers))}."
    )
