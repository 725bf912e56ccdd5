"""Which windows of time series a guarantee can be about; data/windows.py has the reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.core import check
from sordino.core.errors import SpecError

if TYPE_CHECKING:
    from sordino.spec.spec import Spec

HORIZON = 1


def require(spec: Spec) -> None:
    """Raise SpecError unless the windows of a spec are complete and sound for the unit that its method protects."""
    if spec.window is None:
        for key in ("time_column", "horizon", "stride", "time_step"):
            if getattr(spec, key) is not None:
                raise SpecError(f"{key} is for windows of time series: give window too, such as window = 24.")
        return
    horizon = HORIZON if spec.horizon is None else spec.horizon
    check.count(window=spec.window, **({} if spec.stride is None else {"stride": spec.stride}))
    check.non_negative(horizon=horizon)
    if spec.time_column is None:
        raise SpecError("window needs time_column: the column by which rows are put in order.")
    method = spec.method_object()
    if not method.private:
        return
    unit, span = spec.unit or method.units[0], spec.window + horizon
    if unit == "user":
        if spec.user_column is None:
            raise SpecError("windows with unit = user need user_column: a series must belong to one user.")
    elif unit == "client":
        if spec.client_column is None or not (spec.partition or "natural").startswith("natural"):
            raise SpecError(
                "windows with unit = client need client_column and partition = natural: a series must belong to one "
                "client, and dealt windows would put its rows into several."
            )
    elif spec.stride is not None and spec.stride < span:
        raise SpecError(
            f"with unit = {unit}, windows of {spec.window} rows and horizon {horizon} every {spec.stride} rows "
            f"overlap: one row would change several records, and the epsilon would not cover it. Use stride = {span} "
            "or more, or unit = user or client."
        )
    elif spec.time_step is None:
        raise SpecError(
            f"with unit = {unit}, windows need time_step, such as 1h: counted in rows, one row more would move all "
            "later windows, and the epsilon would not cover it. Declare time_step, or use unit = user or client."
        )
