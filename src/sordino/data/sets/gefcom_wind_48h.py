"""GEFCom2014 wind as a forecast 48 hours ahead: Hong et al. (2016), International Journal of Forecasting 32(3).

A record is one forecast, issued for one farm at midnight or at noon: the power of each of the next 48 hours (a fraction
of the capacity of the farm) from the forecast wind of these hours, their time, and the power of the 48 hours before.
Such are the rules of the wind track of GEFCom2012 (7 farms, 48 hours ahead, issued twice a day), whose data are not
here; the wind of GEFCom2014 was forecast at most 24 hours before, so the task is easier than theirs. A client is a zone
(0 to 9 for zones 1 to 10). Hours, scales and the day that test data begin with are those of gefcom_wind.py. Forecasts
that touch an hour without a power value are left out, and no hour of a test record is in a training record.

Successive records overlap: one hour lies in up to eight of them. A guarantee for a record is one for a forecast, not
for an hour, and not for the days around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.data.dataset import Dataset
from sordino.data.schema import numbers
from sordino.data.sets import gefcom_wind
from sordino.data.sets._tables import cells
from sordino.data.sets.base import DatasetSource, FileLayout, halves

__all__ = ["SOURCE"]

HOURS = 48  # of a forecast, and of the power before it
EVERY = 12  # hours from one forecast to the next
Array = NDArray[np.float64]


def _read(paths: list[Path]) -> Dataset:
    table = cells(paths[0])
    table = table[table["TARGETVAR"] != ""].sort_values("TIMESTAMP", kind="stable")
    zones = [_zone(part) for _, part in table.groupby(table["ZONEID"].astype(int))]
    x, y, first = (np.concatenate(parts) for parts in zip(*zones, strict=True))
    client = np.repeat(np.arange(len(zones)), [len(zone[2]) for zone in zones])
    last, begins = first + np.timedelta64(2 * HOURS - 1, "h"), gefcom_wind.TEST_FROM
    parts = np.flatnonzero(last < begins), np.flatnonzero(first >= begins)
    rows = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32))
    return Dataset(
        "gefcom-wind-48h", *halves(*rows, parts), client_train=client[parts[0]], client_test=client[parts[1]],
        task="regression", classes=None, unit_target=True, public=True,
    )  # fmt: skip


def _zone(table: Any) -> tuple[Array, Array, NDArray[np.datetime64]]:
    """Return the records of a farm, [n, 15, 48] and [n, 48], and the first hour that each of them touches."""
    power, u10, v10, u100, v100 = (numbers(c, table[c]) for c in ("TARGETVAR", "U10", "V10", "U100", "V100"))
    time = table["TIMESTAMP"].to_numpy(dtype="datetime64[h]")
    wind = gefcom_wind.wind(u10, v10, gefcom_wind.SCALE_10), gefcom_wind.wind(u100, v100, gefcom_wind.SCALE_100)
    hourly = np.stack([*wind[0], *wind[1], *gefcom_wind.clock(time)])
    hour_of_day = (time - time.astype("datetime64[D]")).astype(np.int64)
    issued = np.flatnonzero(hour_of_day % EVERY == 0)
    issued = issued[(issued >= HOURS - 1) & (issued + HOURS < len(time))]
    before, after = issued[:, None] + np.arange(1 - HOURS, 1), issued[:, None] + np.arange(1, HOURS + 1)
    whole = time[after[:, -1]] - time[before[:, 0]] == np.timedelta64(2 * HOURS - 1, "h")  # no hour is missing
    before, after = before[whole], after[whole]
    x = np.concatenate([hourly[:, after].transpose(1, 0, 2), power[before][:, None, :]], axis=1)
    return x, power[after], time[before[:, 0]]


SOURCE = DatasetSource(
    name="gefcom-wind-48h",
    task="regression",
    records=(10_793, 2_799),
    clients=10,
    licence=gefcom_wind.SOURCE.licence,
    origin=gefcom_wind.SOURCE.origin,
    layouts=(FileLayout(gefcom_wind.SOURCE.layouts[0].files, _read),),
    note="48 hours ahead; a record is one forecast, and successive ones overlap",
)
