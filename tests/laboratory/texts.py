"""Texts, and the words that they are made of: many have letters beyond ASCII."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.laboratory.draws import Draw, Values

PLACES = (
    "Zürich CH|Göttingen DE|São Paulo BR|Łódź PL|København DK|東京 JP|Αθήνα GR|Reykjavík IS|Besançon FR|Málaga ES|"
    "Berlin DE|Potsdam DE|Oslo NO|Tromsø NO|Lyon FR|Kraków PL|Praha CZ|Wien AT|Roma IT|Lisboa PT|Boston US|"
    "Denver US|Austin US|Seattle US|Québec CA|Toronto CA|Lima PE|Bogotá CO|Santiago CL|Nairobi KE|Cairo EG|"
    "Delhi IN|Pune IN|Seoul KR|Osaka JP|Perth AU|Hobart AU|Dublin IE|Leeds GB|Ghent BE"
).split("|")
CITIES, COUNTRIES = ([place.rpartition(" ")[at] for place in PLACES] for at in (0, 2))
FIRST = (
    "Anna José Jürgen Mei Søren Łukasz Zoë Ivan Fatima Chloé John Maria Ali Ingrid Nuno Björn Aiko Priya Omar "
    "Siobhán Peter Eva Tom Lena Noah"
).split()
LAST = (
    "Müller García Nowak Tanaka O'Brien Sørensen Smith Jones Dvořák Silva Kowalski Schmidt Rossi Nguyen Patel "
    "Kim Ivanova Lefèvre Ångström Brown Weiß Costa Hansen Novák Okafor Yılmaz"
).split()
TOPICS = (
    "genome assembly|dark matter|ocean heat|protein folding|graph databases|crop yield|stellar winds|"
    "query optimisation|climate proxies|immune response|neural decoding|soil moisture|gravitational lensing|"
    "drug resistance|snow cover|metagenomics|quasar variability|urban air"
).split("|")
VERBS = (
    "A survey of|On the limits of|Measuring|Towards|Revisiting|A Bayesian view of|Large-scale|Fast|"
    "The naïve approach to|Open questions in"
).split("|")
_BEGINNINGS = "We show that|Our data suggest that|Contrary to earlier work,|In this study".split("|")
_SUBJECTS = (
    "the observed variance|a simple linear model|the Poincaré map|each of the twelve cohorts|background noise (σ ≈ 0.3)"
).split("|")
_FINDINGS = (
    "explains most of the signal|does not depend on the season|was under-reported before 2010|"
    "correlates with altitude and latitude in all regions that we examined|"
    "remains robust; see the supplement for 'raw' values"
).split("|")
SENTENCES = [" ".join(parts) + "." for parts in product(_BEGINNINGS, _SUBJECTS, _FINDINGS)]


def choice(options: Sequence[str | None], codes: Values) -> pa.Array:
    """Of texts, of which one may be NULL."""
    return pa.array([*options], pa.string()).take(pa.array(codes.astype(np.int64)))


def joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def digits(values: Values, width: int = 0) -> pa.Array:
    return pc.utf8_lpad(pa.array(values.astype(np.int64)).cast(pa.string()), width, "0")


def where(present: Values, column: pa.Array) -> pa.Array:
    """The column, NULL where it is not ``present``."""
    return pc.if_else(pa.array(present), column, pa.scalar(None, pa.string()))


def passages(draw: Draw, rows: int, most: int) -> pa.Array:
    """Texts of 1 to ``most`` sentences, some with letters beyond ASCII and quotation marks."""
    count = draw.integers(1, most + 1, rows)
    text, *others = (choice(SENTENCES, draw.integers(0, len(SENTENCES), rows)) for _ in range(most))
    for at, more in enumerate(others, start=1):
        text = pc.if_else(pa.array(count > at), pc.binary_join_element_wise(text, more, " "), text)
    return text
