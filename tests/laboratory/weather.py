"""Weather stations, the calibrations of their sensors, and what they read.

- ``weather_station`` (1,200 rows): more in the first cities; most are not closed, for which ``closed_on`` is NULL.
- ``calibration_run`` (10,800): 1 to 5 a sensor, one after the other; after a quarter of them is a gap without any.
- ``station_reading`` (1,000,000, by time): few sensors, and those beside telescopes, have most; hourly, with gaps of
  up to 200 hours in 2 % of steps; 0.4 % are of a station that does not exist; temperatures fall with the elevation and
  follow season and hour; 1.5 % of the values are NULL.
"""

from __future__ import annotations

import numpy as np

from tests.laboratory.columns import Tables, booleans, dates, decimals, doubles, integers, longs, table, times
from tests.laboratory.draws import day, draw_of, numbered, shuffled, size, skewed, weighted
from tests.laboratory.texts import CITIES, COUNTRIES, FIRST, LAST, choice, digits, joined

SENSORS = ("temp", "hum", "wind")
TELESCOPES = np.array([3, 17, 29, 44])
"""Stations beside a telescope, counted from 0."""
BEGAN, SECONDS = day("2023-01-01") * 86400, 731 * 86400
"""Of all readings and calibrations."""


def tables(scale: float) -> Tables:
    stations, readings = size(1_200, scale), size(1_000_000, scale)
    sensors = stations * len(SENSORS)

    draw = draw_of("weather_station")
    city = weighted(draw, 1 / np.arange(1, 41) ** 0.6, stations)
    elevation = np.abs(draw.gamma(1.2, 420, stations))
    opened = day("1960-01-01") + draw.integers(0, 22_000, stations)
    suffixes = [" Nord", " Hafen", " Flughafen", " Süd", " Observatory", " Hill", ""]
    yield table(
        "weather_station",
        station_id=integers(np.arange(stations) + 1),
        station_code=joined(choice(COUNTRIES, city), "-", digits(np.arange(stations) + 1, 4)),
        station_name=joined(choice(CITIES, city), choice(suffixes, draw.integers(0, 7, stations))),
        country=choice(COUNTRIES, city),
        city=choice(CITIES, city),
        elevation_m=doubles(elevation, 1, draw.random(stations) < 0.03),
        opened_on=dates(opened),
        closed_on=dates(
            np.minimum(opened + draw.integers(8_000, 22_000, stations), day("2024-06-30")),
            draw.random(stations) < 0.85,
        ),
        is_coastal=booleans(elevation < 150),
    )

    draw = draw_of("calibration_run")
    each = draw.integers(1, 6, sensors)
    sensor = np.repeat(np.arange(sensors), each)
    runs = len(sensor)
    lasts = SECONDS // each[sensor]
    begin = BEGAN + (numbered(sensor) - 1) * lasts
    ends_early = draw.random(runs) < 0.25
    technicians = [*map(" ".join, zip(FIRST, LAST, strict=False)), None]
    yield table(
        "calibration_run",
        calib_id=integers(np.arange(runs) + 1),
        station_id=integers(sensor // 3 + 1),
        sensor=choice(SENSORS, sensor % 3),
        valid_from=times(begin),
        valid_to=times(begin + np.where(ends_early, (lasts * draw.uniform(0.5, 0.95, runs)).astype(np.int64), lasts)),
        gain=doubles(draw.normal(1, 0.02, runs), 5),
        bias=doubles(draw.normal(0, 0.4, runs), 4),
        technician=choice(technicians, weighted(draw, [*(1 / np.arange(1, 26)), 0.4], runs)),
        passed=booleans(draw.random(runs) < 0.9),
    )

    draw = draw_of("station_reading")
    beside = (TELESCOPES % stations)[draw.integers(0, 4, readings)] * 3 + draw.integers(0, 3, readings)
    of_telescope = draw.random(readings) < 0.06
    sensor = np.sort(np.where(of_telescope, beside, shuffled(draw, sensors, skewed(draw, sensors, readings, 2))))
    first = draw.integers(0, SECONDS // 3600, sensors) * 3600
    passed = np.cumsum(np.where(draw.random(readings) < 0.02, draw.integers(20, 200, readings), 1) * 3600)
    passed -= passed[np.arange(readings) - numbered(sensor) + 1]  # since the sensor's first reading
    read_at = BEGAN + (passed + first[sensor]) % SECONDS + (sensor % 7) * 600
    station, kind = np.divmod(sensor, 3)
    season = np.sin((read_at / 86400 - 100) * 2 * np.pi / 365.25)
    hour = np.sin(read_at * 2 * np.pi / 86400 - 2)
    noise = draw.normal(0, 2, readings)
    temperature = 14 - elevation[station] * 0.0065 + 9 * season + 4 * hour + noise
    humidity = np.clip(65 - 10 * season - 12 * hour + draw.normal(0, 9, readings), 3, 100)
    value = np.select([kind == 0, kind == 1], [temperature, humidity], draw.gamma(2, 2.2, readings))
    by_time = np.argsort(read_at, kind="stable")
    lost, dangling = draw.random(readings) < 0.015, draw.random(readings) < 0.004
    charge = 1380 - (read_at[by_time] % 7_000_000) // 20_000
    quality = weighted(draw, [90, 6, 3, 1], readings)
    yield table(
        "station_reading",
        reading_id=longs(np.arange(readings) + 1),
        station_id=integers(np.where(dangling, stations + 77, station + 1)[by_time]),
        sensor=choice(SENSORS, kind[by_time]),
        read_at=times(read_at[by_time]),
        reading=doubles(value[by_time], 3, lost),
        quality=integers(quality),
        battery=decimals(np.clip(charge + draw.integers(-9, 9, readings), 0, 1500), 5, 2, draw.random(readings) < 0.02),
    )
