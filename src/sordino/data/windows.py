"""Windows of time series: a record is the rows of a window, and its target is the label some rows later.

Rows are put in the order of their time within a series: the rows of one client, one user and one part (training or
test). A window never mixes two of them, so that a public test window holds no private row, and a user's or client's
windows hold no row of anybody else.

Whom the windows protect. Two windows that overlap share rows, so that one row changes several records, and an epsilon
for one record does not cover one row. Even windows that do not overlap move when they are counted in rows: a row that
is added or removed shifts all later windows of its series. So there are two sound ways (spec/windows.py refuses
others):

- unit = user or client, where the series belongs to one user or client: all its windows are that unit's own records,
  however they overlap;
- unit = record with windows on a fixed grid of time (`time_step`) and a stride of at least window + horizon. The
  window of a row follows from its own time: it has number floor(time / (time_step * stride)). Adding or removing one
  row completes or breaks at most one window, so the windows of the two tables differ in one record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.errors import DataError
from sordino.data import dense

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """How a series of rows is cut into windows."""

    time: str  # column by which the rows are put in order
    length: int  # number of rows of a window
    horizon: int = 1  # the target is the label this many rows after the window's last one
    stride: int | None = None  # rows between the starts of two windows; default: window + horizon, no overlap
    step: str | None = None  # distance of two rows in time, such as "1h" or "1"; None: rows are counted

    def __post_init__(self) -> None:
        check.count(window=self.length, stride=self.every)
        check.non_negative(horizon=self.horizon)

    @property
    def every(self) -> int:
        """Rows between the starts of two windows."""
        return self.length + self.horizon if self.stride is None else self.stride

    def note(self) -> str:
        """Return what a record is, in words."""
        rows = f"rows {self.step} apart" if self.step else "rows"
        return (
            f"a record is a window of {self.length} {rows} of one series, in the order of {self.time}, and the label "
            f"{self.horizon} rows later; a window starts every {self.every} rows, and rows that fill none are left out"
        )

    def cut(self, x: Tensor, y: Tensor, times: Any, series: Ints) -> tuple[Tensor, Tensor, Ints]:
        """Return the inputs [windows, columns, length], the targets, and the last row of each window.

        Args:
            x: Inputs of every row [rows, columns].
            y: Label of every row [rows].
            times: Time of every row, as a pandas column.
            series: Number of the series of every row.
        """
        moments = self._slots(times)
        order = np.lexsort((moments, series))
        cuts = np.flatnonzero(series[order][1:] != series[order][:-1]) + 1
        pieces = [pair for rows in np.split(order, cuts) for pair in self._of_series(rows, moments[rows])]
        if not pieces:
            raise DataError(
                f"no series has a whole window: {self.length} rows and a label {self.horizon} rows later"
                f"{f', every {self.step}' if self.step else ''}. Use a smaller window."
            )
        index, target = np.stack([rows for rows, _ in pieces]), np.array([row for _, row in pieces])
        dense.require("windows", len(index), self.length * x.shape[1])
        inputs = x[torch.from_numpy(index)].transpose(1, 2).contiguous()
        return inputs, y[torch.from_numpy(target)], index[:, -1]

    def _of_series(self, rows: Ints, moments: Any) -> Iterator[tuple[Ints, int]]:
        """Yield the rows of every window of one series, in order, and the row of its label."""
        same = np.flatnonzero(moments[1:] == moments[:-1])
        if len(same):
            first, second = sorted(int(rows[same[0] + i]) + 1 for i in (0, 1))
            raise DataError(
                f"column {self.time!r}, rows {first} and {second}: two rows of one series have the same time"
                f"{f' step of {self.step}' if self.step else ''}. Name the client_column or user_column, or drop one."
            )
        slots = np.arange(len(rows)) if self.step is None else moments
        for i in np.flatnonzero(slots % self.every == 0):
            last = int(i) + self.length - 1
            if last >= len(rows) or slots[last] != slots[i] + self.length - 1:
                continue  # cut short, or a gap inside
            target = int(np.searchsorted(slots, slots[last] + self.horizon))
            if target < len(rows) and slots[target] == slots[last] + self.horizon:
                yield rows[i : last + 1], int(rows[target])

    def _slots(self, times: Any) -> Any:
        """Return the time of every row as a number: with a step, as a whole number of steps since the epoch."""
        values, dated = moments_of(self.time, times)
        if self.step is None:
            return values
        step = step_of(self.step, dated)
        if dated:
            return values // int(step)
        return np.floor(values / step + 1e-6).astype(np.int64)  # 0.3 / 0.1 is a little less than 3


def moments_of(name: str, times: Any) -> tuple[Any, bool]:
    """Return a column of times as numbers, and whether they are dates (then as nanoseconds since 1970, UTC)."""
    import pandas as pd

    if times.dtype.kind in "iuf":
        values = times.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        values = np.full(len(times), np.nan)
        if times.dtype.kind != "M":
            values = pd.to_numeric(times, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isfinite(values).all():
        return values, False
    dates = pd.to_datetime(times, format="ISO8601", utc=True, errors="coerce")
    bad = np.flatnonzero(dates.isna().to_numpy())
    if len(bad):
        raise DataError(
            f"column {name!r}, row {int(bad[0]) + 1}: {times.iloc[int(bad[0])]!r} is no time. Write numbers, or dates "
            "as 2024-05-31 or 2024-05-31 13:00."
        )
    return dates.dt.as_unit("ns").astype("int64").to_numpy(), True


def step_of(text: str, dated: bool) -> float:
    """Return a step in the unit of the times: nanoseconds for dates."""
    import pandas as pd

    try:
        step = float(pd.Timedelta(text).as_unit("ns").value) if dated else float(text)
    except ValueError as error:
        example = "1h, 15min or 1D, since the times are dates" if dated else "1 or 0.5, since the times are numbers"
        raise DataError(f"time_step = {text!r}: write {example}.") from error
    if not 0 < step < np.inf:
        raise DataError(f"time_step = {text!r} must be above zero.")
    return step
