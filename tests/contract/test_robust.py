"""Robust merges: the right location, by naive second implementations, and what they do to the guarantee."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from sordino.contract import pricing
from sordino.contract.robust import RobustMerge, krum, parsed, scaled_rows
from sordino.core.errors import LostRound, RunError, SpecError
from sordino.core.message import Message
from sordino.federations.simulator import Simulator
from sordino.runs.run import execute
from support.problems import federation, job

ROWS = torch.randn(9, 5, generator=torch.Generator().manual_seed(3))
WEIGHT = torch.tensor([1.0, 3, 2, 1, 1, 4, 2, 1, 1])


def location(text: str, rows: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """What a method would divide out of the merged message."""
    out = parsed(text)(Message({"update": rows}, weight, np.arange(len(rows))))
    total = out.total("update")
    return total["update"][0] / total.weight[0]


def repeated() -> np.ndarray:
    return np.repeat(ROWS.numpy(), WEIGHT.int().numpy(), axis=0)


def test_weights_count_like_repeated_rows():
    assert np.allclose(location("median", ROWS, WEIGHT), np.median(repeated(), axis=0), atol=1e-6)
    assert np.allclose(location("trimmed:0.25", ROWS, WEIGHT), trim_mean(repeated(), 0.25, axis=0), atol=1e-6)
    assert np.allclose(location("median", ROWS[:8]), np.median(ROWS[:8].numpy(), axis=0), atol=1e-6)
    assert not np.allclose(location("median", ROWS, WEIGHT), np.median(ROWS.numpy(), axis=0), atol=1e-2)


def test_rows_without_senders_are_enough():
    """A shuffler shows neither senders nor weights."""
    shuffled = parsed("median")(Message({"update": ROWS[torch.tensor([4, 0, 8, 2, 6, 1, 7, 3, 5])]}))
    assert torch.allclose(shuffled["update"][0] / 9, location("median", ROWS)) and shuffled.weight.tolist() == [9.0]


def test_krum_keeps_the_rows_that_naive_krum_keeps():
    rows = torch.cat([ROWS[:6], 8 + 0.1 * ROWS[6:8]])
    scores = [sorted(float((a - b).square().sum()) for j, b in enumerate(rows) if j != i) for i, a in enumerate(rows)]
    order = np.argsort([sum(s[: len(rows) - 2 - 2]) for s in scores])
    for picks in (1, 3):
        kept = rows[order[:picks].copy()].mean(dim=0)
        assert torch.allclose(krum(rows, torch.ones(8), 2, picks), kept, atol=1e-6)
    assert location(f"krum:{2}", rows).norm() < 5  # two rows that agree do not win


def test_a_norm_bound_keeps_directions_and_drops_what_is_no_number():
    rows = torch.stack([ROWS[0], 100 * ROWS[1], ROWS[2] * float("nan"), ROWS[3] * float("inf")])
    bounded = scaled_rows(rows, 5.0)
    assert torch.equal(bounded[0], ROWS[0]) and bounded[2:].norm() == 0
    assert torch.allclose(bounded[1], 5.0 * ROWS[1] / ROWS[1].norm())


@pytest.mark.parametrize("text", ["median", "trimmed:0.4", "krum:3"])
@pytest.mark.parametrize("value", [1e30, float("nan"), float("-inf")])
def test_three_of_nine_rows_cannot_move_it_far(text, value):
    bad = ROWS.clone()
    bad[:3] = value
    assert location(text, bad).abs().max() <= ROWS[3:].abs().max()
    assert not torch.isfinite(location("mean", bad)).all() or location("mean", bad).abs().max() > 1e20


def test_empty_and_small_cohorts():
    nobody = Message({"update": ROWS[:0]}, WEIGHT[:0], np.arange(0))
    assert len(parsed("median")(nobody)) == 0
    with pytest.raises(LostRound, match="needs 7 answers"):
        location("krum:2", ROWS[:6])
    with pytest.raises(RunError, match="only their sum arrived"):
        parsed("median")(Message({"update": ROWS}).total())
    with pytest.raises(RunError, match="whole ones"):
        parsed("median")(Message({"update": ROWS.int()}))


@pytest.mark.parametrize(
    "text", ["middle", "median:1", "trimmed:0.5", "trimmed:x", "krum:0.5", "krum:1:0", "krum:1:2:3", "norm-bound:0"]
)
def test_bad_values_are_refused(text):
    with pytest.raises(SpecError, match="merge"):
        parsed(text)


# --- the guarantee


def test_the_public_may_see_one_row_so_the_noise_of_others_is_not_credited():
    mean, robust = (job(method="nbafl", epsilon=4.0, merge=merge) for merge in ("mean", "median"))
    against = {m: [j.guarantee(v, 3, 3).epsilon for v in ("server", "public")] for m, j in (("m", mean), ("r", robust))}
    assert against["m"][1] < 0.6 * against["m"][0]  # the mean shows the noise of eight clients
    assert against["r"][1] == against["r"][0] == pytest.approx(against["m"][0])
    calibrated = [job(method="nbafl", epsilon=4.0, merge=m, viewer="public").plan.z for m in ("mean", "krum:2")]
    assert calibrated[1] == pytest.approx(robust.plan.z) and calibrated[0] < calibrated[1]
    assert any("no credit" in note for note in robust.notes) and not any("no credit" in note for note in mean.notes)


def test_one_chosen_row_is_what_is_priced():
    """Krum publishes the noisy row of one client; the event against the public is that of the row."""
    made = job(method="nbafl", epsilon=4.0, merge="krum:2")
    events = {cost.viewer: cost.event for cost in pricing.costs(made.method, made.plan)}
    assert events == {"server": made.method.releases(made.plan)[0].mechanism.event()}
    credited = replace(made.plan, robust=RobustMerge())
    assert "public" in {cost.viewer for cost in pricing.costs(made.method, credited)}


def test_a_secure_run_sends_rows_that_can_be_compared():
    """Exact noise of a mean travels as integers that only add up; a robust merge needs each row by itself."""
    for merge, summed in (("mean", True), ("median", False)):
        made = job(method="nbafl", epsilon=4.0, merge=merge, mode="secure", seed=None)
        assert bool(pricing.declared(made.method, made.plan)[0].mechanism.summed) == summed
        assert made.doubt("server") is None and made.doubt("public") is None


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "dp-fedavg", "merge": "median"}, "calibrated for a sum"),
        ({"method": "dp-ftrl", "merge": "krum:1"}, "calibrated for a sum"),
        ({"method": "nbafl", "merge": "median", "channel": "secure-sum"}, "shows the server their sum alone"),
        ({"method": "none", "merge": "norm-bound:1", "channel": "secure-sum"}, "shows the server their sum alone"),
        ({"method": "udp-fl", "merge": "trimmed:0.2"}, "merges the rows of single clients itself"),
        ({"method": "none", "merge": "krum:3"}, "at least 9 clients"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_spent(keys, words):
    with pytest.raises(SpecError, match=words):
        job(**keys)


def test_a_norm_bound_goes_with_the_noise_of_a_trusted_server():
    plain, bounded = (job(method="dp-fedavg", epsilon=4.0, merge=m) for m in ("mean", "norm-bound:0.5"))
    assert bounded.plan.z == plain.plan.z and bounded.promise.epsilon == plain.promise.epsilon


@pytest.mark.parametrize("merge", ["median", "trimmed:0.2", "krum:2:3", "norm-bound:0.2"])
def test_runs_use_the_merge(merge, tmp_path):
    sizes = (12, 3, 12, 8, 12, 30, 12, 12)
    models = []
    for m in ("mean", merge):
        made = job(clients=federation(sizes), method="none", merge=m, rounds=1, out=str(tmp_path), seed=0)
        assert isinstance(made.federation, Simulator)
        models.append(torch.cat([p.flatten() for p in execute(made, own_model=True).model.parameters()]))
    start = made.model.layout.read(made.model.module)
    moved = [model.detach() - start for model in models]
    assert not torch.equal(*moved) and torch.cosine_similarity(*moved, dim=0) > 0.5  # another step, the same way
