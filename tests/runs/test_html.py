"""What a notebook shows of a run: its public part, all of it that matters, and nothing of the owner's."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from sordino.contract.claim import Claim
from sordino.core.record import OwnerRecord, RoundRecord
from sordino.privacy.guarantee import Guarantee, power
from sordino.runs.load import Loaded
from sordino.runs.run import OwnersPart, Result

PROMISE = Guarantee(2.0, 1e-5, "record", "add/remove", "server", 3, "secure", public=("the <7> test records",))
HISTORY = [
    RoundRecord(t, {"server": 2.0 * t / 3, "public": t / 3}, accuracy=0.5 + t / 10, evaluated_on="public test data")
    for t in (1, 2, 3)
]
OWNERS = OwnersPart([OwnerRecord(1, 4711, 815, 815, 12.34)], {"server": replace(PROMISE, epsilon=1.618)}, ("a secret",))
RESULT = Result(
    nn.Linear(2, 2), PROMISE, {"server": PROMISE, "public": replace(PROMISE, epsilon=1.0)}, HISTORY, Path("runs/x"),
    ("a remark",), {"worst_class": 0.71, "odd": math.nan}, OWNERS, "all runs together promise little",
)  # fmt: skip


def text(thing) -> str:
    return " ".join(" ".join(ElementTree.fromstring(thing._repr_html_()).itertext()).split())


def test_a_result_shows_the_promise_the_figures_and_the_curve():
    shown = text(RESULT)
    for part in (PROMISE.sentence(), "epsilon 2", "delta 1e-05", "record, added or removed", "viewer server",
                 "epsilon against the public 1", "accuracy 80.00 %", "worst class 0.71", "odd not finite",
                 "epsilon spent", "Note: a remark", "All runs together promise little."):  # fmt: skip
        assert part in shown, part
    assert "claimed" not in shown and "<svg" in RESULT._repr_html_()


@pytest.mark.parametrize("secret", ["4711", "815", "12.34", "1.618", "a secret"])
def test_a_result_shows_nothing_of_the_owners_part(secret):
    assert secret not in RESULT._repr_html_() and secret not in repr(RESULT)


def test_a_claim_stands_beside_what_is_accounted():
    claim = Claim(0.5, 1e-6, "A <paper>", "it forgets the rounds", scope="round", unit="client")
    shown = text(replace(RESULT, claim=claim))
    assert "claimed accounted epsilon 0.5 for one round 2 delta 1e-06 1e-05 unit client record, added" in shown
    assert claim.sentence() in shown
    assert Claim.from_json(claim.to_json()) == claim


def test_a_run_without_a_guarantee_draws_no_epsilon():
    nothing = replace(PROMISE, epsilon=math.inf, reason="no noise is added")
    history = [replace(record, epsilon={"server": math.inf}, accuracy=None, loss=1.5) for record in HISTORY]
    shown = text(Loaded(nothing, {"server": nothing}, history, {}, {}, Path("x")))
    assert shown.startswith("No guarantee: epsilon is infinite") and "epsilon spent" not in shown
    assert "loss by round" in shown


def test_a_run_without_rounds_is_shown():
    assert "Nothing was evaluated." in text(replace(RESULT, history=[], metrics={}))


def test_a_guarantee_shows_what_it_leaves_to_a_test():
    assert "with 1 % false alarms, recognises at most 7.4 % of those that are." in text(PROMISE)
    assert power(PROMISE, 0.01) == pytest.approx(math.exp(2) * 0.01 + 1e-5)
    assert power(PROMISE, 0.9) == pytest.approx(1 - math.exp(-2) * (1 - 1e-5 - 0.9))  # the bound on the other error
    assert power(replace(PROMISE, epsilon=0.0, delta=0.0), 0.3) == pytest.approx(0.3)  # guessing
    assert power(replace(PROMISE, epsilon=1e4), 0.01) == 1.0
    assert "rather than another one" in text(replace(PROMISE, relation="replace"))
    assert "recognises" not in text(replace(PROMISE, epsilon=math.inf, reason="none"))
