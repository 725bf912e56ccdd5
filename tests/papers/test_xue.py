"""Figures of Xue et al.: what K counts, where rivals add noise, and the run without noise that a loss refers to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sordino.core.local_training import Local
from sordino.papers import run as running
from sordino.papers.base import Outcome

NAMES = [name for name in running.EXPERIMENTS if name.startswith("002/")]


@pytest.mark.parametrize("name", NAMES)
def test_k_counts_epochs(name):
    """A client of 1,200 records takes K / q = 10 K steps in batches of 120."""
    for trial in running.find(name).trials(1.0):
        own = trial.form in ("printed", "reference") and trial.x != "batches"
        assert ("local_epochs" in trial.keys) == own, trial.name
        assert not own or "local_steps" not in trial.keys
        if own:
            settings = Local(steps=None, epochs=trial.keys["local_epochs"], batch_rate=trial.keys["batch_rate"])
            assert settings.count(1200) == 10 * trial.keys["local_epochs"] and settings.expected_batch(1200) == 120


def test_the_two_ways_to_count_differ_in_nothing_else():
    made = {(t.row, t.x, t.form, t.seed): dict(t.keys) for t in running.find("002/steps").trials(1.0)}
    assert len(made) == 4 * 2 * 2 * 3
    for (row, x, form, seed), keys in made.items():
        if x == "epochs":
            batches = made[(row, "batches", form, seed)]
            assert batches.pop("local_steps") == keys.pop("local_epochs") == 16 and batches == keys
            assert keys["rounds"] == 7


def test_rivals_that_add_noise_to_gradients_add_it_once_an_upload_as_well():
    trials = [t for t in running.find("002/fig4d").trials(1.0) if t.form == "printed"]
    once = {t.keys["method"] for t in trials if t.keys.get("noised") == "upload"}
    assert once == {"adap-dp-fl-paper", "private-dl-paper", "dp-dyns-paper", "fed-alpha-cdp-paper"}
    by_name = {(t.row, t.x, t.seed): dict(t.keys) for t in trials}
    for (row, x, seed), keys in by_name.items():
        if keys.pop("noised", "step") == "upload":
            assert keys == by_name[(row.removesuffix(", once an upload"), x, seed)]


def test_three_seeds_for_figures_3_to_5():
    for name in NAMES:
        wanted = {0} if name.split("/")[1] in ("fig2", "readings", "theorem3") else {0, 1, 2}
        assert {t.seed for t in running.find(name).trials(1.0)} == wanted, name


def finished(trial, curve):
    """The outcome of a trial with these accuracies after its rounds."""
    result = {"accuracy": curve[-1], "rounds": len(curve), "guarantee": {"epsilon": None}}
    return Outcome(trial, result, [{"round": n, "accuracy": a} for n, a in enumerate(curve, 1)])


def test_a_loss_refers_to_as_many_rounds_without_noise():
    experiment = running.find("002/fig4a")
    trials = {(t.row, t.x, t.form): t for t in experiment.trials(1.0) if t.seed == 0}
    noisy, plain = trials[("Adam", 0.5, "printed")], trials[("Adam", "none", "reference")]
    one = [finished(noisy, [0.5, 0.9]), finished(plain, [0.6, 0.93, 0.99])]
    lines = experiment.extra(one)
    assert "| Adam | 1.71 | 3.00 |" in lines and "| SGD | 3.29 |  |" in lines
    assert lines[0].startswith("Accuracy lost at epsilon = 0.5 after 2 rounds, where its run ends, against as many")
    again = [finished(replace(noisy, seed=1), [0.5, 0.8]), finished(replace(plain, seed=1), [0.6, 0.93, 0.99])]
    assert "| Adam | 1.71 | 8.00 ± 7.07 |" in experiment.extra(one + again)
    short = [finished(noisy, [0.5, 0.9]), finished(plain, [0.6])]  # the run without noise is not as long
    assert "| Adam | 1.71 |  |" in experiment.extra(short)
