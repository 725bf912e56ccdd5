"""Messages of clients with little budget are believed where those with much point; all of it after the noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.contract.method import started
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.methods.pfa import Pfa, subspace
from sordino.privacy.accountants import gdp
from sordino.runs import loop
from support.methods import federation_of, play, rows
from support.problems import federation, job, plan
from support.silent import silent_job

RNG, DIM = Stream.research(34), 30
LAYOUT = Layout.of(nn.Linear(DIM - 1, 1))  # parameters of 29 and of 1
SMALL, LARGE = 1.0, 5.0  # noise multipliers


def two_kinds(public=3, private=5, **keys):
    made = plan(population=public + private, multipliers=(SMALL,) * public + (LARGE,) * private, **keys)
    return made, torch.tensor([[SMALL]] * public + [[LARGE]] * private)


def after(method, messages, made, who=None, count=None):
    """The state after a round in which these clients sent these messages, each counted so much."""
    state = started(method, State(torch.zeros(DIM)), LAYOUT, made)
    weight = None if count is None else torch.full((len(messages),), count)
    ids = np.array(range(len(messages)) if who is None else list(who), dtype=np.int64)
    return method.merge(state, Message({"update": messages}, weight, ids), made)


def merged(method, messages, made, who=None, count=None):
    return after(method, messages, made, who, count).params


def messages(n=8, seed=0):
    return RNG.at("messages", seed).rows(range(n)).normal(DIM, like=torch.zeros(1))


def test_the_subspace_is_that_of_a_singular_value_decomposition():
    rows = messages(6).double()
    _, _, v = torch.linalg.svd(rows, full_matrices=False)
    for dims in (1, 3, 6):
        found = subspace(rows, dims)
        assert torch.allclose(found @ found.T, v[:dims].T @ v[:dims], atol=1e-10)
    assert subspace(rows, 9).shape == (DIM, 6) and subspace(0 * rows, 2).shape == (DIM, 0)


@pytest.mark.parametrize("dims", [1, 2])
def test_the_mean_is_that_of_a_hand_written_projection(dims):
    made, _ = two_kinds()
    sent = messages()
    public, private = sent[:3].double(), sent[3:].double()
    parts = []
    for a, b in ((0, DIM - 1), (DIM - 1, DIM)):  # parameter by parameter
        m, p = public[:, a:b].mean(0), private[:, a:b].mean(0)
        _, _, v = torch.linalg.svd(public[:, a:b] - m, full_matrices=False)
        v = v[: min(dims, b - a)]
        parts.append((3 * m + 5 * (m + v.T @ (v @ (p - m)))) / 8)
    expected = torch.cat(parts)
    assert torch.allclose(merged(Pfa(dims=dims), sent, made).double(), expected, atol=1e-6)
    assert not torch.allclose(sent.mean(0).double(), expected, atol=1e-2)
    # the same where every answer counts half, as under drop-out: scaled, and no client taken for another kind
    half = merged(Pfa(dims=dims), sent, made, count=0.5)
    assert torch.allclose(half.double(), expected / 2, atol=1e-6)


def test_without_projection_it_is_the_plain_or_the_weighted_mean():
    made, z = two_kinds()
    sent = messages()
    assert torch.allclose(merged(Pfa(dims=0), sent, made), sent.mean(0), atol=1e-6)
    weights = 1 / z / (1 / z).sum()
    weighted = merged(Pfa(dims=0, weighting="budget"), sent, made)
    assert torch.allclose(weighted, (weights * sent).sum(0), atol=1e-6)  # WeiAvg
    assert not torch.allclose(weighted, sent.mean(0), atol=1e-2)


def test_noise_of_private_clients_leaves_the_projected_mean():
    """Public clients know the direction, private ones shout: the projected mean is far nearer to the truth."""
    made, _ = two_kinds(6, 6)
    truth = torch.linspace(-1, 1, DIM)
    noisy = truth + torch.cat([0.1 * messages(6), 10 * messages(6, seed=1)])
    plain, projected = (merged(Pfa(dims=d), noisy, made) for d in (0, 1))
    assert float((projected - truth).norm()) < 0.5 * float((plain - truth).norm())


def test_who_is_public_follows_the_budgets_and_their_equals():
    made, _ = two_kinds(2, 8)
    assert Pfa(top_share=0.1)._threshold(made) == pytest.approx(SMALL, rel=1e-4)
    assert Pfa(top_share=0.3)._threshold(made) == pytest.approx(LARGE, rel=1e-4)
    sent = messages(10)
    assert torch.allclose(merged(Pfa(top_share=1.0), sent, made), sent.mean(0), atol=1e-6)  # all are public


@pytest.mark.parametrize("who", [range(2), range(2, 8), range(1), []])
def test_a_round_without_one_kind_is_an_average(who):
    made, _ = two_kinds(2, 6)
    sent = messages()[list(who)]
    found = merged(Pfa(), sent, made, who)
    assert torch.allclose(found, sent.sum(0) / 8, atol=1e-6)  # over the answers that were expected


def silent(**keys):
    return silent_job(4000, bias=False, method="pfa", learning_rate=1.0, epsilon=5.0, **keys)


def test_every_client_adds_the_noise_of_its_own_budget():
    made = silent(budgets="0.5:0.5,5:0.5", clip=0.3, rounds=4)
    sent = rows(made, rng=RNG)
    told = sorted(set(made.plan.multipliers))
    for z, epsilon in zip(told, (5.0, 0.5), strict=True):  # four full-batch rounds: mu = 2 / z
        assert gdp.epsilon_of_mu(2 / z, 1e-5) == pytest.approx(epsilon, rel=1e-3)
    z = torch.tensor(made.plan.multipliers)[:, None]
    noise = (sent / (z * 0.3 / 10)).flatten().numpy()
    assert kstest(noise, norm.cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1).cdf).pvalue < 1e-3
    swapped = (sent / (z.flip(0) * 0.3 / 10)).flatten().numpy()
    assert torch.equal(z, z.flip(0)) or kstest(swapped, norm.cdf).pvalue < 1e-3  # each has its own


def test_the_new_model_knows_the_data_through_the_rows_only():
    """The same noisy rows on other data: the same model, bit for bit."""
    made, _ = two_kinds()
    sent = messages()
    assert torch.equal(merged(Pfa(), sent, made), merged(Pfa(), sent.clone(), made))
    other = job(method="pfa", budgets="1:0.5,3:0.5", clients=federation(seed=7))
    one = job(method="pfa", budgets="1:0.5,3:0.5", clients=federation(seed=8))
    noisy = RNG.at("heard").rows(range(8)).normal(one.model.layout.dim, like=torch.zeros(1))
    heard = Message({"update": noisy}, None, np.arange(8))
    both = [m.method.merge(loop.begin(one), heard, m.plan).params for m in (one, other)]
    assert torch.equal(*both) and not torch.equal(both[0], loop.begin(one).params)


def test_who_sent_a_message_says_which_noise_is_in_it():
    """In a played round, uneven records: by hand from the messages and the plan's multipliers."""
    made = job(method="pfa", budgets="1:0.5,3:0.5", clients=federation((6, 12, 9, 5)), dims=0, weighting="budget")
    cohort = [3, 0, 2]
    played = play(made, cohort)
    z = torch.tensor([made.plan.multipliers[k] for k in cohort])[:, None]
    mean = (played.sent["update"] / z).sum(0) / (1 / z).sum() * len(cohort) / 4
    assert played.sent.ids.tolist() == cohort and len(set(made.plan.multipliers)) == 2
    assert torch.allclose(played.after.params - loop.begin(made).params, mean, atol=1e-6)


def test_without_budgets_it_is_refused_by_name():
    with pytest.raises(SpecError, match=r"pfa is for clients with budgets of their own: give budgets"):
        job(method="pfa", budgets=None)


@pytest.mark.parametrize("bad", [{"dims": -1}, {"top_share": 0.0}, {"weighting": "size"}])
def test_options_are_checked(bad):
    with pytest.raises(SpecError):
        Pfa(**bad)


def test_the_bound_of_a_record_is_the_clip():
    made = job(method="pfa", budgets="1:0.5,3:0.5", clients=[(30 * x, y) for x, y in federation()], clip=0.2)
    quiet = replace(made.plan, noise_multiplier=1e-9, multipliers=(1e-9,) * 8)
    less = [(x[1:], y[1:]) if i == 3 else (x, y) for i, (x, y) in enumerate((30 * x, y) for x, y in federation())]
    fewer = job(method="none", clients=less).federation.data
    a, b = (rows(made, [3], federation=federation_of(made, quiet, held)) for held in (made.federation.data, fewer))
    sums = [12 / 0.1 * a, 12 / 0.1 * b]  # undo learning rate and weight; 12 records are expected, 11 are there
    moved = float((sums[0] - sums[1]).norm())
    assert 0.1 < moved <= 0.2 * (1 + 1e-4)


def test_it_says_who_was_projected_and_what_was_left():
    """Two directions of 29 hold about a fourteenth of what is all noise; public clients alone are not projected."""
    made, _ = two_kinds()
    method, sent = Pfa(dims=2), messages()
    told = method.decided(after(method, sent, made), made)
    assert (told["public"], told["others"]) == (3, 5) and 0 < told["kept"] < 0.5
    inside = torch.cat([sent[:3], sent[:3].mean(0) + torch.zeros(5, 1)])  # the others say what the public ones do
    close = after(method, inside, made)
    head, text = method.explain([{"round": 1, "decided": told}])
    assert "2 directions" in head and text.startswith("Round 1: 3 messages with the largest budgets, 5 others; ")
    alone = after(method, sent[:3], made)
    words = method.explain([{"round": 1, "decided": method.decided(alone, made)}])[1]
    assert words == "Round 1: 3 messages with the largest budgets, 0 others; averaged as they are."
    assert torch.isfinite(close.params).all()


def test_a_number_of_directions_that_is_refused_says_what_is_allowed():
    with pytest.raises(SpecError, match="dims must not be negative, not -1"):
        Pfa(dims=-1)
    with pytest.raises(SpecError, match="dims must be a whole number"):
        Pfa(dims=0.5)
    assert Pfa(dims=0).dims == 0
