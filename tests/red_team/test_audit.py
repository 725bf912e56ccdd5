"""The audit of a whole job: it shows much of an honest epsilon, and finds what is wrong with a method or a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from sordino.audits import game
from sordino.core.errors import SpecError
from sordino.data.clients import ArrayClients
from sordino.methods.dp_sgd import ClipRule, DpSgd, Recipe
from sordino.privacy.accountants import gdp
from sordino.privacy.clip import clip_rows
from sordino.red_team import own_model, probe
from sordino.red_team.audit import audit, check_viewer
from support.problems import CLASSES, FEATURES, federation, job, linear

MANY = (40,) * 4  # records of the clients: batches larger than those on which models are tried before a run


def test_much_of_an_honest_epsilon_is_shown_and_the_rest_is_not():
    found = audit(job(method="dp-sgd", epsilon=4.0), canaries=4000)
    assert found.accounted == pytest.approx(4.0, abs=1e-3) and not found.alarm
    assert 0.7 * 4 < found.least_gaussian < 4 and 0.2 * 4 < found.least < 4
    (trial,) = found.trials
    assert trial.placement == "apart" and trial.trials == 4000 and trial.shown.ceiling > 5
    assert found.sentence().startswith("Accounted: epsilon = 4. Audited: at least ")
    assert found.to_json()["least"] == found.least


def test_half_the_noise_is_an_alarm():
    made = job(method="dp-sgd", epsilon=4.0, rounds=4)
    less = replace(made, plan=replace(made.plan, noise_multiplier=made.plan.z / 2))
    assert audit(made, canaries=1500).accounted == pytest.approx(4.0, abs=1e-3)
    # the audit prices what it is given, so it is the promise of the first that is compared with the play of the second
    curve = probe.epsilon_curve(probe.of_job(made, 3000).job)
    assert game.play(probe.trials(probe.of_job(less, 3000), 1500), curve, 1e-5).refuted
    assert not game.play(probe.trials(probe.of_job(made, 3000), 1500), curve, 1e-5).refuted


def test_a_trusted_servers_noise_is_audited_by_runs_and_by_coordinates():
    found = audit(job(method="dp-fedavg", epsilon=6.0, rounds=1), canaries=400)
    assert [t.placement for t in found.trials] == ["runs", "coordinates"] and not found.alarm
    assert found.unit == "client" and found.viewer == "public"
    assert found.trials[1].assumes and found.trials[1].one_run is not None and not found.trials[0].assumes
    assert 0.5 * 6 < found.trials[1].gaussian.epsilon < 6
    assert found.least < found.accounted


def test_against_whom_nothing_is_promised_there_is_no_alarm():
    found = audit(job(method="dp-fedavg", epsilon=6.0, rounds=1), canaries=150, viewer="server")
    assert found.accounted == float("inf") and not found.alarm
    assert found.least > 1 and "Nothing is promised against the server" in found.sentence()
    with pytest.raises(SpecError, match="Use public"):
        check_viewer("client")


class LooksAtOthers(nn.Module):
    """Centres its inputs over the batch, but only over large ones."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.layer(x - x.mean(dim=0, keepdim=True) if len(x) > 20 else x)


def centred(out, y):
    """A loss that looks at all records of a large batch."""
    losses = nn.functional.cross_entropy(out, y, reduction="none")
    return losses - 5 * losses.mean() if len(y) > 20 else losses


@pytest.mark.parametrize("keys", [{}, {"module": LooksAtOthers()}, {"loss": centred}], ids=["plain", "layer", "loss"])
def test_at_the_real_batch_size_no_model_or_loss_of_ones_own_sees_other_records(keys):
    made = job(clients=federation(MANY), method="dp-sgd", epsilon=2.0, **keys)
    assert own_model.batch_size(made) == 40
    moves = {m.change: m for m in own_model.moves(made)}
    assert not any(m.fails for m in moves.values()) and moves["removed"].moved == pytest.approx(1.0, abs=1e-3)


@dataclass(frozen=True)
class WholeBatch(ClipRule):
    """Clips the sum over the batch instead of every record's gradient."""

    clip: float

    def bound(self, layers, factor):
        return self.clip * factor

    def sums(self, weights, batch, model, factor, seeds, groups):
        return clip_rows(model.gradients.sums(weights, batch, None, seeds=seeds), self.clip * factor)


@dataclass(frozen=True)
class BatchClipped(DpSgd):
    def recipe(self):
        return Recipe(WholeBatch(self.clip))


def test_a_batch_that_is_clipped_as_a_whole_is_found_at_the_real_batch_size():
    made = job(module=linear(), clients=federation(MANY), method="dp-sgd", epsilon=2.0)
    wrong = replace(made, method=BatchClipped())
    worst = max(own_model.moves(wrong), key=lambda m: m.moved / max(m.allowed, 0.5))
    assert worst.change == "removed" and worst.fails and worst.moved > 1.2
    assert "moves the outlet gradient by" in worst.sentence() and "which shows epsilon >=" in worst.sentence()
    assert worst.epsilon is not None and worst.epsilon > gdp.epsilon_of_mu(1 / made.plan.z, 1e-5)


def test_what_has_no_promise_is_not_measured():
    assert own_model.moves(job(method="none")) == ()


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "distributed"},
        {"channel": "secure-sum", "min_cohort": 6, "allowed_dropouts": 1},
        {"channel": "secure-sum", "viewer": "server+5"},
        {"merge": "krum:2"},
        {"method": "dp-fedavg", "merge": "norm-bound:1"},
        {"method": "udp-fl"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_every_kind_of_plan_can_be_audited(keys):
    made = job(**{"method": "dp-sgd", "epsilon": 4.0, "rounds": 1} | keys)
    found = audit(made, canaries=100)
    assert not found.alarm and found.accounted == made.promise.epsilon and found.least < found.played
    differs = found.played != pytest.approx(found.accounted, rel=1e-3)
    assert differs == any("the made-up plan is accounted at" in note for note in found.notes)


# a user who leaves may turn a client's update round, and dp-fedavg pays for that; a canary that leaves shows half of it
@pytest.mark.parametrize(("method", "share"), [("dp-sgd", 0.4), ("dp-fedavg", 0.1)])
def test_users_are_audited(method, share):
    x, y = (torch.cat(parts) for parts in zip(*federation((12,) * 8), strict=True))
    held = ArrayClients(x, y, [12] * 8, np.repeat(np.arange(48), 2))
    found = audit(job(clients=held, method=method, unit="user", epsilon=6.0, rounds=1), canaries=400)
    assert found.unit == "user" and not found.alarm and share * 6 < found.least_gaussian < 6
