"""udp-fl with the algorithms it goes with, and with intermediate models on low-loss paths."""

import pytest
import torch
from torch import nn

from sordino.core.errors import SpecError
from sordino.methods.udp_fl import low_loss_path
from sordino.privacy.clip import clip_rows
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Release
from sordino.runs import loop
from support.methods import play
from support.problems import job
from support.udp import RNG, budgeted, rounds_of


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd", "fedprox", "scaffold", "fedopt", "q-fedavg"])
def test_all_of_it_goes_with_the_algorithms_of_the_paper(algorithm):
    steps = {} if algorithm == "fedsgd" else {"local_steps": 2}
    made = budgeted(algorithm=algorithm, path="bezier", server_data=0.25, path_steps=2, **steps)
    after = rounds_of(made, 2)[0][-1]
    assert torch.isfinite(after.params).all() and after.params.shape == loop.begin(made).params.shape
    decided = made.method.decided(after, made.plan)
    assert len(decided["path_loss"]) == len(decided["straight_loss"]) == 11
    assert decided["path_loss"][0] == decided["straight_loss"][0]


@pytest.mark.parametrize("algorithm", ["fedavg", "q-fedavg"])
def test_an_unoptimised_path_is_the_mean(algorithm):
    keys = {"method": "udp-fl", "server_data": 0.25, "algorithm": algorithm}
    plain = rounds_of(job(**keys))[0][-1].params
    assert torch.allclose(rounds_of(job(path="pairs", **keys))[0][-1].params, plain)
    assert torch.allclose(rounds_of(job(path="polygon", path_steps=0, **keys))[0][-1].params, plain, atol=1e-6)
    other = rounds_of(job(path="polygon", path_steps=5, **keys))[0][-1].params
    assert not torch.allclose(other, plain, atol=1e-4)


def test_an_optimised_path_lowers_the_loss_on_the_servers_data():
    keys = {"method": "udp-fl", "server_data": 0.25, "epsilon": 8.0}
    losses = {}
    for path in ("none", "polygon", "bezier"):
        made = job(path=path, path_steps=15, path_lr=0.5, **keys)
        module = loop.trained(made, rounds_of(made, 2)[0][-1].params)
        x, y = made.plan.public.batch.x, made.plan.public.batch.y
        losses[path] = float(nn.functional.cross_entropy(module(x), y).detach())
    assert losses["polygon"] < 0.9 * losses["none"] and losses["bezier"] < 0.95 * losses["none"]


def test_tuned_is_training_on_the_servers_data_without_a_path():
    """Every point is theta: gradients at the average itself, no end of a path in them."""
    made = job(method="udp-fl", server_data=0.25)
    public, models = made.plan.public, torch.randn(2, made.model.layout.dim)
    found = low_loss_path.optimise("tuned", models, public, 1, 0.1, 4, RNG)
    theta, at = models.mean(0, keepdim=True), RNG.at("step", 0)
    step = 0.1 * clip_rows(low_loss_path._gradients(theta, public, at), 1.0).value
    assert torch.allclose(found.shift, -step[0], atol=1e-6) and step.norm() > 0.01
    assert torch.equal(found.along, found.along[:1].expand(11)) and not torch.equal(found.straight, found.along)


def test_a_path_needs_data_that_the_server_may_use():
    for path in ("polygon", "bezier", "tuned"):
        with pytest.raises(SpecError, match="server_data"):
            job(method="udp-fl", path=path)
    job(method="udp-fl", path="pairs")


def test_an_empty_cohort_with_everything_on():
    made = budgeted(path="polygon", server_data=0.25)
    start = loop.begin(made)
    assert torch.equal(play(made, [], start).after.params, start.params)


def test_the_dice_of_a_path_are_public_and_no_noise_comes_from_them():
    """They are there while the server merges, alone; clients have none, and no release of a server may use them."""
    made = job(method="udp-fl", path="bezier", server_data=0.25, path_steps=3)
    assert made.plan.dice is None and made.federation.work.plan.dice is None
    states = [play(made, rng=RNG).after.params for _ in range(2)]
    assert torch.equal(*states)
    sent = play(made, rng=RNG).seen
    start = loop.begin(made)
    here = made.plan.merging(RNG.at("round", 0))
    assert here.dice == RNG.at("round", 0).at("merge").at("path")
    other = made.plan.merging(RNG.at("round", 1))
    one, two = (made.method.merge(start, sent, plan).params for plan in (here, other))
    assert torch.equal(one, states[0]) and not torch.equal(one, two)
    with pytest.raises(ValueError, match="while the server merges"):
        made.method.merge(start, sent, made.plan)
    for key in ("merge/path", "merge/path/step 0"):
        with pytest.raises(SpecError, match="public randomness"):
            Release("update", Gaussian(1.0), "client", 1.0, where="server", key=key)
    Release("update", Gaussian(1.0), "client", 1.0, where="server", key="merge/paths")


def test_what_the_path_was_worth_in_the_last_round_is_said():
    made = job(method="udp-fl", path="bezier", server_data=0.25, path_steps=2)
    rounds = [{"round": s.round, "decided": made.method.decided(s, made.plan)} for s in rounds_of(made, 2)[0][1:]]
    (said,) = [line for line in made.method.explain(rounds) if "path" in line]
    along, straight = (rounds[-1]["decided"][k][5] for k in ("path_loss", "straight_loss"))
    assert along != straight and said.startswith("Round 2: halfway between the first two models")
    assert f"{along:.4g} on the path, {straight:.4g} on the straight line." in said
    rounds[-1]["decided"]["path_loss"] = [None] * 11  # JSON's word for a loss that is not finite
    assert "was not finite on the path" in " ".join(made.method.explain(rounds))
    assert "path" not in " ".join(made.method.explain([{"round": 1, "decided": {}}]))
