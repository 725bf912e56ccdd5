"""Malicious clients do damage under plain averaging, and a robust merge stops the crude ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sordino.core.errors import SpecError
from sordino.federations.simulator import ClientPart
from sordino.red_team.malicious import Poison, PoisonedRecords, Trigger, poisoned, success_rate
from sordino.runs.run import execute
from support.problems import federation, held_out, job, linear

MARK, TARGET = Trigger((0, 1), 6.0), 2
BAD = (0, 1)
POISONS = {
    "label-flip": Poison("label-flip", BAD, boost=40.0),
    "sign-flip": Poison("sign-flip", BAD, boost=8.0),
    "scaled": Poison("scaled", BAD, boost=300.0),
    "gaussian": Poison("gaussian", BAD, deviation=50.0),
    "backdoor": Poison("backdoor", BAD, boost=15.0, trigger=MARK, target=TARGET),
}
TEST = held_out(300)


def clients():
    """Ten clients, the first two of which hold one class alone."""
    pairs = federation((30,) * 10)
    return [(x[y == 0], y[y == 0]) for x, y in pairs[:2]] + pairs[2:]


def run(tmp_path, poison=None, **keys):
    """Return the accuracy, and how often marked records are taken for the target class."""
    keys = {"method": "none", "rounds": 8, "seed": 0, "out": str(tmp_path)} | keys
    made = job(linear(), clients(), **keys)
    result = execute(made if poison is None else poisoned(made, poison), own_model=True)
    x, y = TEST
    with torch.no_grad():
        right = float((result.model(x).argmax(1) == y).double().mean())
        return right, success_rate(result.model(MARK.stamped(x)).argmax(1), y, TARGET)


@pytest.mark.parametrize("kind", POISONS)
def test_plain_averaging_is_poisoned_and_robust_merges_are_not(kind, tmp_path):
    (clean, unmarked), (right, planted) = run(tmp_path), run(tmp_path, POISONS[kind])
    assert clean > 0.95 and unmarked < 0.3
    assert planted > 0.9 if kind == "backdoor" else right < 0.8
    for merge in ("median", "trimmed:0.3", "krum:3"):
        right, planted = run(tmp_path, POISONS[kind], merge=merge)
        assert right > 0.9 and (kind != "backdoor" or planted < 0.4), merge


def test_a_clip_at_the_clients_does_not_bind_malicious_ones_and_a_norm_bound_does(tmp_path):
    keys = {"method": "dp-fedavg", "epsilon": 1e4, "clip": 0.3, "delta": 1e-3}
    assert run(tmp_path, POISONS["sign-flip"], **keys)[0] < 0.6
    assert run(tmp_path, POISONS["sign-flip"], merge="norm-bound:0.3", **keys)[0] > 0.9


def test_honest_code_clips_poisoned_records(tmp_path):
    """A client of which only the records are poisoned passes the outlets, which bound what it can do."""
    keys = {"method": "dp-fedavg", "epsilon": 1e4, "clip": 0.3, "delta": 1e-3}
    assert run(tmp_path, Poison("label-flip", BAD, honest_code=True), **keys)[0] > 0.9
    assert run(tmp_path, Poison("label-flip", tuple(range(8)), honest_code=True), **keys)[0] < 0.5
    with pytest.raises(SpecError, match="honest code"):
        Poison("sign-flip", BAD, honest_code=True)


def test_only_the_records_of_malicious_clients_change():
    made = job(linear(), clients(), method="none")
    data = made.federation.data
    part, cpu = ClientPart(data, np.arange(10)), torch.device("cpu")
    before = data.fetch([0, 5], cpu)
    flipped = PoisonedRecords(part, POISONS["label-flip"], 3).fetch([0, 5], cpu)
    mine = before.sizes[0]
    assert (flipped.y[:mine] == 1).all() and torch.equal(flipped.y[mine:], before.y[mine:])
    marked = PoisonedRecords(part, POISONS["backdoor"], 3).fetch([5, 0], cpu)
    theirs = before.sizes[1]
    assert torch.equal(marked.x[:theirs], before.x[mine:])
    half = -(-mine // 2)
    assert (marked.y[theirs : theirs + half] == TARGET).all() and (marked.y[theirs + half :] == 0).all()
    assert (marked.x[theirs : theirs + half, :2] == 6.0).all()


def test_who_cannot_be_malicious():
    with pytest.raises(SpecError, match="client 10 is malicious"):
        poisoned(job(linear(), clients(), method="none"), Poison("scaled", (10,)))
    with pytest.raises(SpecError, match="an experiment"):
        poisoned(job(linear(), clients(), method="none", mode="secure"), Poison("scaled", (1,)))
