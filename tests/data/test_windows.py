"""Windows of time series: what a window holds, and that one row changes no more records than the epsilon counts."""

import numpy as np
import pandas as pd
import pytest
import torch

from sordino.core.errors import DataError, SpecError
from sordino.data.load import Columns, load
from sordino.data.windows import Windows
from sordino.runs.prepare import prepare
from sordino.spec import spec
from support.errors import one_line_error


def table(rows=40, users=(1, 2), step=1):
    """Hourly rows of some users, shuffled."""
    lines = [(u, t * step, t + 100 * k, t % 7) for k, u in enumerate(users) for t in range(rows)]
    frame = pd.DataFrame(lines, columns=["who", "hour", "load", "wind"])
    return frame.sample(frac=1, random_state=0)


def read(folder, frame, windows, **roles):
    frame.to_csv(folder / "t.csv", index=False)
    return load("t.csv", str(folder), columns=Columns(**{"label": "load", "user": "who", "windows": windows} | roles))


def as_set(data):
    return {(*x.flatten().tolist(), float(y)) for x, y in zip(data.x_train, data.y_train, strict=True)}


def test_a_window_holds_the_rows_of_one_user_in_order_and_the_label_comes_later(tmp_path):
    frame = table().assign(load=lambda t: t.load + 0.5)
    data = read(tmp_path, frame, Windows("hour", 3, horizon=2, stride=5))
    assert data.x_train.shape == (16, 2, 3)  # columns: wind, and the past of the load
    loads = data.x_train[:, 1] % 100
    assert torch.equal(loads[0], torch.tensor([0.5, 1.5, 2.5])) and data.y_train[0] % 100 == 4.5
    assert torch.equal(data.x_train[:, 1] // 100, (data.y_train // 100)[:, None].expand(-1, 3))  # never two users
    assert len(set(data.user_train.tolist())) == 2 and len(data.user_train) == 16
    assert any("a window of 3 rows" in note for note in data.notes)


def test_a_class_is_predicted_without_its_past_and_horizon_0_is_the_last_row(tmp_path):
    data = read(tmp_path, table(), Windows("hour", 4, horizon=0), label="wind")
    assert data.x_train.shape == (20, 1, 4) and data.classes == 7
    assert torch.equal(data.y_train, (data.x_train[:, 0, -1] % 100 % 7).long())


def test_a_series_alone_is_enough(tmp_path):
    frame = pd.DataFrame({"day": pd.date_range("2024-01-30", periods=9), "value": np.arange(9) + 0.5})
    data = read(tmp_path, frame, Windows("day", 2, step="1D"), label="value", user=None)
    assert data.x_train.shape[1:] == (1, 2) and (data.y_train == data.x_train[:, 0, 1] + 1).all()


def test_test_rows_are_never_in_a_private_window_nor_private_rows_in_a_public_one(tmp_path):
    frame = table().assign(part=lambda t: np.where(t.hour >= 30, "test", "train"), load=lambda t: t.load + 0.5)
    data = read(tmp_path, frame, Windows("hour", 4, stride=1), split="part")
    assert float((data.x_train[:, 1] % 100).max()) < 30 <= float((data.x_test[:, 1] % 100).min())
    assert float((data.y_train % 100).max()) < 30


@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_with_unit_record_one_row_more_or_less_changes_one_window(horizon, tmp_path):
    """The law that spec/windows.py rests on: on a grid of time, windows without overlap differ in one record."""
    frame = table(rows=30, users=(1,)).assign(load=lambda t: t.load + 0.5)
    frame = frame[~frame.hour.isin([8, 21])]  # gaps
    windows = Windows("hour", 4, horizon, step="1")
    whole, worst = as_set(read(tmp_path, frame, windows)), 0
    for hour in sorted(frame.hour):
        without = as_set(read(tmp_path, frame[frame.hour != hour], windows))
        assert not without - whole  # none is new
        worst = max(worst, len(whole - without))
    assert worst == 1


def test_counted_in_rows_or_with_overlap_one_row_changes_many_windows(tmp_path):
    """Why the others are refused: the test above can fail."""
    frame = table(rows=30, users=(1,)).assign(load=lambda t: t.load + 0.5)
    for windows in (Windows("hour", 4), Windows("hour", 4, stride=1, step="1")):
        whole, without = (as_set(read(tmp_path, f, windows)) for f in (frame, frame[frame.hour != 9]))
        assert len(whole ^ without) > 4


def keys(folder, **more):
    table().assign(load=lambda t: t.load + 0.5, site=lambda t: t.who).to_csv(folder / "t.csv", index=False)
    named = {"dataset": "t.csv", "data_dir": str(folder), "label_column": "load", "time_column": "hour", "window": 3}
    return spec.from_dict(named | {"method": "dp-sgd", "clients": 2, "rounds": 1} | more)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"stride": 1, "time_step": "1"}, "windows of 3 rows and horizon 1 every 1 rows overlap.*Use stride = 4"),
        ({"stride": 3, "time_step": "1"}, "overlap"),
        ({"stride": 4, "time_step": "1", "horizon": 2}, "overlap.*stride = 5"),
        ({}, "windows need time_step.*one row more would move all later windows"),
        ({"unit": "user"}, "need user_column"),
        ({"method": "dp-fedavg"}, "windows with unit = client need client_column"),
        ({"method": "dp-fedavg", "client_column": "site", "partition": "iid"}, "partition = natural"),
        ({"window": None}, "time_column is for windows"),
        ({"time_column": None}, "window needs time_column"),
        ({"window": 0}, "window"),
        ({"horizon": -1}, "horizon"),
    ],
)
def test_windows_that_an_epsilon_would_not_cover_are_refused(more, match, tmp_path):
    with one_line_error(SpecError, match):
        keys(tmp_path, **more)


@pytest.mark.parametrize(
    "more",
    [
        {"time_step": "1", "user_column": "who"},
        {"time_step": "1", "user_column": "who", "stride": 4, "public_share": 0.3},
        {"unit": "user", "user_column": "who", "stride": 1},
        {"method": "dp-fedavg", "client_column": "site", "stride": 1},
        {"method": "none", "stride": 1, "user_column": "who"},
    ],
)
def test_windows_that_it_covers_are_prepared(more, tmp_path):
    prepared = prepare(keys(tmp_path, **more))
    assert prepared.clients.x.shape[-1] == 3 and prepared.clients.count == (1 if more.get("unit") == "user" else 2)


def test_times_that_say_no_order_are_refused(tmp_path):
    with one_line_error(DataError, "column 'hour', rows .*: two rows of one series have the same time"):
        read(tmp_path, table(), Windows("hour", 3), user=None, label="wind")
    with one_line_error(DataError, "two rows of one series have the same time step of 2"):
        read(tmp_path, table(), Windows("hour", 3, step="2"))
    with one_line_error(DataError, "'soon' is no time"):
        read(tmp_path, table().assign(hour="soon"), Windows("hour", 3))
    with one_line_error(DataError, "time_step = '1h': write 1 or 0.5"):
        read(tmp_path, table(), Windows("hour", 3, step="1h"))
    with one_line_error(DataError, "no series has a whole window"):
        read(tmp_path, table(rows=3), Windows("hour", 3))


def test_steps_of_a_tenth_are_told_apart(tmp_path):
    data = read(tmp_path, table(step=0.1), Windows("hour", 3, step="0.1"))
    assert len(data.y_train) == 20
