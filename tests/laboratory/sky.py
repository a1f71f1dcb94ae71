"""Sources in the sky, the exposures of telescopes, and the detections of the ones on the others.

- ``sky_source`` (120,000 rows): most are faint; the redshift is NULL for all stars, the parallax for all else; most
  quasars vary and few others do.
- ``exposure_log`` (9,000, by night): more in the first fields; the site is one of four weather stations; three quarters
  have no remarks.
- ``source_detection`` (800,000, by exposure): few sources have most; 1 % are of a source that does not exist; the
  magnitude is NULL where the flux is below three errors; ``flags`` is 0 or one of six bits.
"""

from __future__ import annotations

import numpy as np

from tests.laboratory.columns import Tables, booleans, dates, decimals, doubles, integers, longs, table, times
from tests.laboratory.draws import day, draw_of, shuffled, size, skewed, weighted
from tests.laboratory.texts import FIRST, LAST, choice, digits, joined, passages, where
from tests.laboratory.weather import TELESCOPES


def tables(scale: float) -> Tables:
    stations, sources, exposures, detections = (size(rows, scale) for rows in (1_200, 120_000, 9_000, 800_000))

    draw = draw_of("sky_source")
    kind = weighted(draw, [55, 28, 4, 2, 11], sources)
    magnitude = np.clip(24 - draw.exponential(2.2, sources), 9, 24)
    redshift = np.where(kind == 1, draw.gamma(2, 0.15, sources), draw.gamma(4, 0.45, sources))
    yield table(
        "sky_source",
        source_id=longs(np.arange(sources) * 8191 + 7_000_000_000),
        ra_deg=doubles(draw.random(sources) * 360, 6),
        dec_deg=doubles(np.degrees(np.arcsin(draw.uniform(-1, 1, sources))), 6),
        obj_class=choice(["STAR", "GALAXY", "QSO", "SN", None], kind),
        mag_r=doubles(magnitude, 3),
        redshift=doubles(redshift, 5, (kind == 0) | (kind == 4) | (draw.random(sources) < 0.3)),
        survey=choice(["Gaia DR3", "SDSS", "Pan-STARRS", "2MASS", "ESO"], weighted(draw, [40, 30, 15, 10, 5], sources)),
        parallax_mas=doubles(draw.gamma(1, 1.5, sources), 4, kind != 0),
        first_seen=dates(day("2010-01-01") + draw.integers(0, 4_000, sources)),
        variable_flag=booleans(draw.random(sources) < np.where(kind == 2, 0.6, 0.04)),
    )

    draw = draw_of("exposure_log")
    night = np.sort(day("2019-01-01") + skewed(draw, 2_000, exposures, 0.8))
    seeing = draw.gamma(6, 0.16, exposures)
    observers = [*map(", ".join, zip(LAST[3:], FIRST, strict=False)), None]
    yield table(
        "exposure_log",
        exposure_id=integers(np.arange(exposures) + 500),
        field_name=joined("F", digits(skewed(draw, 300, exposures, 2), 3)),
        filter_band=choice("griz", weighted(draw, [3, 4, 2, 1], exposures)),
        started=times(night * 86400 + 20 * 3600 + (np.arange(exposures) % 40) * 700),
        exp_seconds=decimals(
            np.array([30_000, 60_000, 120_500, 300_000])[weighted(draw, [2, 4, 2, 1], exposures)], 8, 3
        ),
        seeing=doubles(seeing, 3, draw.random(exposures) < 0.05),
        airmass=doubles(1 + draw.gamma(1.3, 0.25, exposures), 3),
        observer=choice(observers, weighted(draw, [*(1 / np.arange(1, 24)), 0.3], exposures)),
        usable=booleans(seeing < 1.5),
        site_station=integers(TELESCOPES[weighted(draw, [5, 3, 2, 1], exposures)] % stations + 1),
        remarks=where(draw.random(exposures) < 0.25, passages(draw, exposures, 8)),
    )

    draw = draw_of("source_detection")
    source = shuffled(draw, sources, skewed(draw, sources, detections, 2.2))
    exposure = np.sort(skewed(draw, exposures, detections, 1.1))
    flux = 10 ** (-0.4 * (magnitude[source] - 25 + draw.normal(0, 0.12, detections)))
    error = flux * 0.02 + draw.gamma(2, 0.4, detections)
    dangling = draw.random(detections) < 0.01
    yield table(
        "source_detection",
        detection_id=longs(np.arange(detections) + 1),
        source_id=longs(np.where(dangling, 5_000 + source, source * 8191 + 7_000_000_000)),
        exposure_id=integers(exposure + 500),
        flux=doubles(flux, 4),
        flux_err=doubles(error, 4),
        x_pix=doubles(draw.random(detections) * 4096, 2),
        y_pix=doubles(draw.random(detections) * 2048, 2),
        flags=integers(np.where(draw.random(detections) < 0.85, 0, 1 << draw.integers(0, 6, detections))),
        mag_ab=decimals(np.round((25 - 2.5 * np.log10(flux)) * 10_000).astype(np.int64), 7, 4, flux / error < 3),
        deblended=booleans(draw.random(detections) < 0.1),
    )
