"""GEFCom2014 wind: Hong et al. (2016), International Journal of Forecasting 32(3). Power of ten wind farms, 0 to 1.

The task is to predict the hourly power (a fraction of the capacity of the farm) from forecasts of the wind at 10 m and
100 m above ground. A client is a zone (0 to 9 for zones 1 to 10). Training data end with June 2013, and test data
follow; the 112 hours without a power value are dropped. Scales are public: 15 and 25 m/s, the hour of the day and the
day of the year.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.data.dataset import Dataset
from sordino.data.schema import numbers
from sordino.data.sets._tables import cells
from sordino.data.sets.base import DatasetSource, File, FileLayout, halves

__all__ = ["SOURCE"]

TEST_FROM = np.datetime64("2013-07-01")
SCALE_10, SCALE_100 = 15.0, 25.0  # m/s: a strong wind at either height


def _read(paths: list[Path]) -> Dataset:
    table = cells(paths[0])
    table = table[table["TARGETVAR"] != ""].reset_index(drop=True)
    power, u10, v10, u100, v100, zone = (
        numbers(c, table[c]) for c in ("TARGETVAR", "U10", "V10", "U100", "V100", "ZONEID")
    )
    time = table["TIMESTAMP"].to_numpy(dtype="datetime64[h]")
    features = np.stack([*wind(u10, v10, SCALE_10), *wind(u100, v100, SCALE_100), *clock(time)], axis=1)
    test = time >= TEST_FROM
    parts = np.flatnonzero(~test), np.flatnonzero(test)
    client = zone.astype(np.int64) - 1
    x, y = torch.from_numpy(features.astype(np.float32)), torch.from_numpy(power.astype(np.float32))
    return Dataset(
        "gefcom-wind", *halves(x, y, parts), client_train=client[parts[0]], client_test=client[parts[1]],
        task="regression", classes=None, unit_target=True, public=True,
    )  # fmt: skip


def wind(u: NDArray[np.float64], v: NDArray[np.float64], scale: float) -> list[NDArray[np.float64]]:
    """Return the components, the speed and the direction (cosine, sine), each within a few units of 0."""
    speed = np.hypot(u, v)
    calm = np.maximum(speed, 1e-9)
    return [u / scale, v / scale, speed / scale, u / calm, v / calm]


def clock(time: NDArray[np.datetime64]) -> list[NDArray[np.float64]]:
    """Return the sine and cosine of the hour of the day and of the day of the year."""
    days = time.astype("datetime64[D]")
    hour = (time - days).astype(np.float64) / 24
    day = (days - time.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.float64) / 365.25
    return [wave(2 * np.pi * part) for part in (hour, day) for wave in (np.sin, np.cos)]


SOURCE = DatasetSource(
    name="gefcom-wind",
    task="regression",
    records=(131_258, 36_630),
    clients=10,
    licence="none stated; Hong et al. (2016) to be cited",
    origin="It is Task15_W_Zone1.csv to Task15_W_Zone10.csv of the GEFCom2014 data (appendix of Hong et al. 2016), in "
    "one table, rounded to 6 decimals; to use a table of your own, give its path.",
    layouts=(
        FileLayout(
            (
                File(
                    "gefcom2014_wind/gefcom2014_wind.csv.gz",
                    "90456a90fd3ab33073c8f118dc05c24930de0b0f5bd2c4e0ae3ada62b0b4d0af",
                ),
            ),
            _read,
        ),
    ),
)
