"""The calculator of the view: the same numbers as the commands that it names, and in time."""

from __future__ import annotations

import json
import shlex
import threading

import pytest
from click.testing import CliRunner

from sordino.cli.main import cli
from sordino.ui import calculator
from sordino.ui.api import ViewAnswers
from support.views import make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of one run."""
    folder = tmp_path_factory.mktemp("calculator") / "runs"
    make_run(folder, "alpha")
    return folder


def told(answer):
    """Return the values of the tiles, and the command that is shown."""
    blocks = answer["sections"][0]["blocks"]
    return [tile["value"] for tile in blocks[0]["tiles"]], blocks[-1]["rows"][0][1]


def printed(command):
    """Return what a command prints for programs."""
    done = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "query",
    [
        {"noise": "1.23456789", "rate": "0.0123456789", "steps": "12345", "delta": "1.23456789e-6"},
        {"noise": "40", "rate": "0.001", "steps": "10", "delta": "1e-5", "relation": "replace"},
        {"noise": "123.4567", "rate": "1", "steps": "1000000", "delta": "1e-9"},
    ],
)
def test_the_command_that_is_shown_computes_with_the_same_numbers(runs, query):
    (value,), command = told(ViewAnswers([runs]).answer(["epsilon"], query))
    exact = printed(command)["epsilon"]
    assert exact == pytest.approx(
        calculator.tightest.epsilon(
            calculator.event(
                float(query["noise"]), float(query["rate"]), int(query["steps"]), query.get("relation", "add/remove")
            ),
            float(query["delta"]),
        ),
        rel=1e-12,
    )
    assert exact <= float(value) * (1 + 1e-9) and float(value) <= exact * 1.001 + 1e-3


@pytest.mark.parametrize(
    "query",
    [
        {"epsilon": "2", "rate": "0.01", "steps": "1000", "delta": "1e-5"},
        {"epsilon": "0.05", "rate": "1", "steps": "900", "delta": "1e-5"},  # 1733.1247, which is not 1733.12
        {"epsilon": "0.1", "rate": "1", "steps": "1000", "delta": "1e-6", "relation": "replace"},
        {"epsilon": "100", "rate": "1e-6", "steps": "1", "delta": "0.01"},
    ],
)
def test_the_noise_for_an_epsilon_is_that_of_calibrate_and_never_too_small(runs, query):
    (noise, spent), command = told(ViewAnswers([runs]).answer(["noise"], query))
    found = printed(command)
    assert float(noise) == found["value"]
    assert found["epsilon"] <= float(spent) <= float(query["epsilon"])


def test_a_small_epsilon_keeps_its_figures(runs):
    query = {"noise": "40", "rate": "0.001", "steps": "10", "delta": "1e-6"}
    (value,), _ = told(ViewAnswers([runs]).answer(["epsilon"], query))
    assert 0 < float(value) < 1e-3 and len(value.lstrip("0.")) == 4


@pytest.mark.parametrize(("rate", "told_so"), [("1", "uses all units."), ("0.5", "(Poisson sampling).")])
def test_a_step_with_all_units_is_not_called_a_draw(runs, rate, told_so):
    answer = ViewAnswers([runs]).answer(["epsilon"], {"noise": "2", "rate": rate, "steps": "3", "delta": "1e-5"})
    assert answer["sections"][0]["blocks"][1]["text"].endswith(told_so)


def test_curves_that_take_long_have_fewer_points_from_end_to_end(runs, monkeypatch):
    monkeypatch.setattr(calculator, "SECONDS", 0.0)
    query = {"noise": "1.5", "rate": "0.015", "steps": "200", "delta": "1e-5"}
    answer = ViewAnswers([runs]).answer(["curves"], query)
    steps, noise = (block["series"][0]["points"] for block in answer["sections"][0]["blocks"])
    assert [x for x, _ in steps] == [1, 200] and [x for x, _ in noise] == pytest.approx([0.375, 6])


def test_the_planner_refuses_rates_at_which_it_would_take_minutes(runs):
    heard = []

    def planner(numbers):
        heard.append(numbers)
        return {"settings": [], "verdicts": [], "notes": []}

    answers = ViewAnswers([runs], planner=planner)
    query = {"clients": "9", "records": "9", "parameters": "10", "epsilon": "2", "delta": "1e-5", "rounds": ""}
    few = answers.answer(["plan"], query | {"client_rate": "1e-4", "batch_rate": "1e-4"})
    assert few == {"error": "client rate times batch rate must be at least 1e-06 here, not 1e-08."} and not heard
    assert "error" not in answers.answer(["plan"], query | {"client_rate": "1e-4", "batch_rate": "0.01"})


def test_nothing_waits_for_the_planner(runs):
    began, go_on = threading.Event(), threading.Event()

    def planner(numbers):
        began.set()
        go_on.wait(120)
        return {"settings": [], "verdicts": [], "notes": []}

    answers = ViewAnswers([runs], planner=planner)
    query = dict.fromkeys(("clients", "records"), "100") | {"parameters": "1000", "epsilon": "2", "delta": "1e-5"}
    thread = threading.Thread(target=answers.answer, args=(["plan"], query | {"client_rate": "1", "batch_rate": "1"}))
    thread.start()
    assert began.wait(20)
    (id,) = (item.id for item in answers.shelf.items())
    sliders = {"noise": "2", "rate": "1", "steps": "9", "delta": "1e-5"}
    done = []

    def others():
        done.append(answers.answer(["run", id, "report"], {}))
        done.append(answers.answer(["epsilon"], sliders))

    other = threading.Thread(target=others)
    other.start()
    other.join(60)
    waited = other.is_alive()
    go_on.set()
    thread.join()
    other.join()
    assert not waited and not any("error" in answer for answer in done)
