import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm
from torch import nn

from sordino.contract import pricing
from sordino.contract.method import Local
from sordino.contract.outlets import Outlets
from sordino.core.errors import RunError, SpecError
from sordino.core.message import Message
from sordino.methods.udp_fl import harmonizer
from sordino.methods.udp_fl.method import UdpFl
from sordino.methods.udp_fl.noises import RowLaplace, RowStaircase, noise
from sordino.privacy.accountants import zcdp
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Composed, FixedSize, GaussianEvent, Pure, Repeated, Sampled
from sordino.privacy.mechanisms.laplace import LaplaceEvent, LaplaceL2Event
from sordino.privacy.mechanisms.staircase_ball import StaircaseBallEvent
from sordino.privacy.release import Use
from sordino.privacy.tightest import epsilon
from sordino.runs import loop
from support.methods import federation_of, play, price, rows
from support.problems import CLASSES, FEATURES, federation, job, plan
from support.silent import silent_job
from support.udp import RNG, budgeted, held, records, rounds_of

WIDE = 2000


def silent(**keys):
    """2001 weights whose gradient is zero."""
    return silent_job(WIDE, method="udp-fl", learning_rate=1.0, **keys)


def moved(made, ids=range(4)):
    return rows(made, ids, rng=RNG)


# --- noise


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_the_noise_has_the_scale_of_its_mechanism_and_no_other(mechanism):
    made = silent(mechanism=mechanism, clip=0.5)
    noise = moved(made).flatten().numpy()
    wide = 0.5 * (math.sqrt(2 * (WIDE + 1) / math.pi) if mechanism in ("laplace", "staircase") else 1.0)
    scale = made.plan.z * wide / 10  # over the records
    law = norm if mechanism == "gaussian" else laplace  # an L1-ball staircase in 2001 dimensions is Laplace noise
    assert kstest(noise, law(scale=scale).cdf).pvalue > 1e-3
    assert kstest(noise, law(scale=1.1 * scale).cdf).pvalue < 1e-3
    assert kstest(noise, law(scale=0.9 * scale).cdf).pvalue < 1e-3
    assert made.method.noise(loop.begin(made), made.plan) == pytest.approx(noise.std(), rel=0.03)


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_a_single_number_gets_noise_too(mechanism):
    """The loss that q-fedavg asks for: all norms are the same there."""
    z, data = 0.25, Bounded(torch.zeros(4000, 1), 2.0)
    drawn = noise(mechanism, z, 1).apply(data, RNG.rows(range(4000)), Use())
    assert float(drawn.std()) == pytest.approx(2.0 * harmonizer.deviation(mechanism, z, 1), rel=0.07)


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
@pytest.mark.parametrize("dim", [1, 7, 500])
def test_what_acts_is_what_is_priced_and_shown(mechanism, dim):
    """One object: its noise, its deviation, its norm, its event; by rho alone the same noise at a price of its own."""
    one, free = noise(mechanism, 0.7, dim), noise(mechanism, 0.7, dim, by_rho=True)
    zeros, ids = Bounded(torch.zeros(60_000 // dim, dim), 3.0), RNG.rows(range(60_000 // dim))
    drawn = one.apply(zeros, ids, Use())
    assert torch.equal(free.apply(zeros, ids, Use()), drawn)
    assert float(drawn.std()) == pytest.approx(one.std(3.0), rel=0.05) == free.std(3.0)
    leaf = {"gaussian": GaussianEvent(0.7), "l2-laplace": LaplaceL2Event(0.7), "laplace": LaplaceEvent(0.7)}
    assert one.event() == leaf.get(mechanism, StaircaseBallEvent(1 / 0.7)) and free.event() == LaplaceL2Event(0.7)
    assert getattr(one, "norm", 2) == free.norm == harmonizer.NORMS[mechanism]
    each = torch.tensor([0.7, 1.4, math.inf])[:, None]
    three = Bounded(torch.zeros(3, dim), 3.0)
    own = one.apply(three, RNG.rows(range(3)), Use(multiplier=each))
    for k in (0, 1):
        alone = noise(mechanism, float(each[k]), dim)
        got = alone.apply(Bounded(torch.zeros(1, dim), 3.0), RNG.rows([k]), Use())[0]
        assert torch.allclose(own[k], got, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mechanism", [RowLaplace(1.0, norm=1), RowLaplace(1.0), RowStaircase(1.0, 4)])
def test_noise_that_does_not_add_up_is_not_shared(mechanism):
    with pytest.raises(SpecError, match="not shared"):
        mechanism.apply(Bounded(torch.zeros(2, 4), 1.0, 1), RNG.rows(range(2)), Use(split=2))


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_clients_with_budgets_of_their_own_have_noise_of_their_own(mechanism):
    made = silent(mechanism=mechanism, budgets="0.5:0.5,4:0.5", epsilon=4.0, penalty=False)
    own = np.array(made.plan.multipliers)
    assert len(set(own)) == 2 and min(own) == pytest.approx(made.plan.z)
    for z, row in zip(own, moved(made), strict=True):
        want = harmonizer.deviation(mechanism, float(z), WIDE + 1) / 10
        assert float(row.std()) == pytest.approx(want, rel=0.09)
    together, alone = moved(made), torch.cat([moved(made, [i]) for i in range(4)])
    assert torch.allclose(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_one_record_moves_the_clipped_sum_by_no_more_than_its_bound(mechanism):
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation((6, 6, 6, 6)))]
    made = job(method="udp-fl", clients=wild, mechanism=mechanism, clip=0.3)
    state, data = loop.begin(made), records(made, range(4))
    whole = made.method.clipped(mechanism, state.params, data, made.model, [0] * 4)
    keep = torch.tensor([i % 6 != 2 for i in range(24)])
    less = made.method.clipped(mechanism, state.params, data.where(keep), made.model, [0] * 4)
    apart = (whole.value - less.value).double()
    order = harmonizer.NORMS[mechanism]
    moved_by = apart.abs().sum(dim=1) if order == 1 else apart.norm(dim=1)
    wide = harmonizer.dense_l1(made.plan.dim) if order == 1 else 1.0
    assert whole.norm == order and whole.bound == pytest.approx(0.3 * wide) and bool((moved_by <= whole.bound).all())
    assert float(moved_by.max()) > 0.9 * whole.bound  # the records do pull
    if order == 1:  # a clip to L2 norm C, or to the L1 norm that all such vectors have, would let more or less through
        assert float(apart.norm(dim=1).max()) > 1.02 * 0.3 and whole.bound < 0.9 * 0.3 * math.sqrt(made.plan.dim)
    (release,) = made.method.releases(made.plan)
    assert (release.bound, release.norm) == (whole.bound, order)
    outlet = Outlets((release,), RNG.rows(range(4)))["gradient"]
    outlet(whole)
    with pytest.raises(RunError, match="norm"):  # noise made for one norm is not added to a bound in another
        outlet(Bounded(whole.value, whole.bound, 3 - order))


# --- accounting


def test_what_is_charged():
    def cost(mechanism, local=None, sampling="poisson", **keys):
        keys = {"dim": 100, "local": local or Local(steps=4)} | keys
        (found,) = price(UdpFl(mechanism=mechanism, batch_sampling=sampling), plan(noise_multiplier=2.0, **keys))
        return found.event

    assert cost("gaussian") == Repeated(GaussianEvent(2.0), 4)
    assert cost("l2-laplace") == Repeated(LaplaceL2Event(2.0), 4)
    assert cost("laplace", Local(batch_rate=0.1)) == Sampled(LaplaceEvent(2.0), 0.1)
    assert cost("staircase") == Repeated(StaircaseBallEvent(0.5), 4)
    assert cost("auto") == Repeated(GaussianEvent(2.0), 4)
    third = Local(batch_rate=None, batch_size=4)
    twice = cost("staircase", third, "fixed")  # a replaced record moves the sum by two steps
    assert twice == FixedSize(Pure(1.0), 4, 12)
    assert epsilon(twice, 1e-5) == epsilon(FixedSize(StaircaseBallEvent(1.0), 4, 12), 1e-5)
    from sordino.algorithms.q_fedavg import QFedAvg

    both = cost("laplace", Local(), algorithm=QFedAvg())
    assert both == Composed((LaplaceEvent(2.0), LaplaceEvent(2.0)))


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_the_promise_is_kept_and_used(mechanism):
    made = job(method="udp-fl", mechanism=mechanism, epsilon=3.0, rounds=7)
    assert 0.99 * 3.0 < made.promise.epsilon <= 3.0


def test_three_laplace_rounds_by_hand():
    made = job(method="udp-fl", mechanism="laplace", epsilon=3.0, rounds=3, delta=1e-9)
    assert 3 / made.plan.z == pytest.approx(3.0, rel=1e-3)  # one epsilon a round


def test_free_choice_is_charged_by_rho_alone():
    made = job(method="udp-fl", reselect=2, epsilon=3.0, rounds=20)
    (cost,) = price(made.method, made.plan)
    assert cost.event == LaplaceL2Event(made.plan.z)
    rho = 20 / (2 * made.plan.z**2)
    assert made.promise.epsilon <= 3.0 < zcdp.epsilon(Repeated(LaplaceL2Event(0.99 * made.plan.z), 20), 1e-5)
    decided = made.method.decided(rounds_of(made)[0][-1], made.plan)
    assert decided["rho_total"] == pytest.approx(rho) and decided["rho"] == pytest.approx(rho / 20)


def test_free_choice_needs_full_batches():
    with pytest.raises(SpecError, match="batch_rate = 1"):
        job(method="udp-fl", reselect=2, batch_rate=0.5)


@pytest.mark.parametrize(
    "keys",
    [
        {"mechanism": "uniform"},
        {"profile": "rich"},
        {"prior": 1.5},
        {"reselect": 2, "mechanism": "laplace"},
        {"pure": True, "mechanism": "gaussian"},
        {"path": "arc"},
        {"mechanism": "l2-laplace", "batch_sampling": "fixed"},
    ],
)
def test_nonsense_is_refused(keys):
    with pytest.raises(SpecError):
        UdpFl(**keys)


# --- the choice


def test_the_choice_and_its_scale_are_those_of_the_public_plan():
    """Other data of the same sizes: the same plan, the same choice, the same numbers, the same noise."""
    others = [(7 * x, (y + 1) % CLASSES) for x, y in federation()]
    one, two = job(method="udp-fl", reselect=1), job(method="udp-fl", clients=others, reselect=1)
    assert one.plan.z == two.plan.z and one.method.chosen(one.plan) == two.method.chosen(two.plan)
    state = rounds_of(one, 2)[0][-1]  # a frozen transcript
    assert one.method.decided(state, one.plan) == two.method.decided(state, two.plan)
    assert one.method.noise_of(state, one.plan) == two.method.noise_of(state, two.plan)
    noises = []
    for made in (one, two):
        quiet = federation_of(made, plan=replace(made.plan, noise_multiplier=1e-9), rng=RNG)
        noises.append(rows(made, state=state, rng=RNG) - rows(made, state=state, federation=quiet))
    assert torch.allclose(noises[0], noises[1], atol=1e-5) and float(noises[0].std()) > 1e-3


def message(sent):
    return Message({"update": sent}, torch.ones(len(sent)), np.arange(len(sent)))


def test_a_mechanism_follows_from_what_was_released_alone():
    """Two released updates, one sparse and far above the noise: Table 2 (given nearly all the weight) takes over."""
    keys = {"epsilon": 5.0, "prior": 0.95, "reselect": 1, "rounds": 50}
    made = silent(**keys)
    state = loop.begin(made)
    assert made.method.noise_of(state, made.plan) == "gaussian"
    std = made.method.noise(state, made.plan)
    sparse = torch.zeros(4, WIDE + 1)
    sparse[:, ::100] = 200 * std
    noise = std * torch.randn(4, WIDE + 1, generator=torch.Generator().manual_seed(0))
    dense = 20 * std * torch.randn(1, WIDE + 1, generator=torch.Generator().manual_seed(1)).expand(4, -1)
    chosen = {}
    for name, sent in (("sparse", sparse + noise), ("dense", dense + noise), ("nothing", noise)):
        after = replace(made.method.merge(state, message(sent), made.plan), round=1)
        chosen[name] = made.method.noise_of(after, made.plan)
        decided = made.method.decided(after, made.plan)
        assert decided["mechanism"] == "gaussian"  # the round that was
        assert decided["next"]["candidates"][0]["mechanism"] == chosen[name]
        assert price(made.method, made.plan, 1, after)[0].event == LaplaceL2Event(made.plan.z)
    assert chosen == {"sparse": "l2-laplace", "dense": "gaussian", "nothing": "gaussian"}
    after = replace(made.method.merge(state, message(sparse + noise), made.plan), round=1)
    drawn = rows(made, state=after, rng=RNG).flatten().numpy()
    assert kstest(drawn, laplace(scale=made.plan.z / 10).cdf).pvalue > 1e-3  # it is Laplace noise at the same scale
    assert kstest(drawn, norm(scale=made.plan.z / 10).cdf).pvalue < 1e-3


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_the_sensitivity_in_use_is_recorded_in_the_norm_of_the_noise(mechanism):
    made = job(method="udp-fl", mechanism=mechanism, clip=0.4)
    found = made.method.decided(rounds_of(made)[0][-1], made.plan)
    state, data = loop.begin(made), records(made, range(8))
    used = made.method.clipped(mechanism, state.params, data, made.model, [0] * 8)
    assert (found["norm"], found["sensitivity"]) == (used.norm, pytest.approx(used.bound))
    assert found["scale"] == pytest.approx(made.plan.z * used.bound)


def test_delta_zero_is_a_demand_of_its_own():
    made = job(method="udp-fl", pure=True, rounds=2, local_steps=2)
    decided = made.method.decided(rounds_of(made)[0][-1], made.plan)
    assert decided["mechanism"] in ("laplace", "staircase")
    assert decided["epsilon_at_delta_0"] == pytest.approx(2 / made.plan.z)


# --- heterogeneity


def test_lambda_is_the_missing_share_of_the_largest_budget():
    made = budgeted()
    strengths = made.method.strengths(made.plan)
    low, high = max(strengths), min(strengths)  # more noise is less budget
    assert strengths[high] == 0 and strengths[low] == pytest.approx((4 - 0.5) / 4, abs=2e-3)


def test_the_penalty_pulls_clients_with_less_budget_and_no_one_else():
    made = budgeted(learning_rate=0.2)
    plain = replace(made, method=replace(made.method, penalty=False))
    start = loop.begin(made)
    goal = start.params + torch.linspace(-1, 1, len(start.params))
    state = replace(start, method=replace(start.method, w_max=goal))
    pulled, free = rows(made, state=state, rng=RNG), rows(plain, state=state, rng=RNG)
    strengths = made.method.strengths(made.plan)
    for row, z in zip(pulled - free, made.plan.multipliers, strict=True):  # w - eta (g + lambda_k (w - w_max))
        assert torch.allclose(row, -0.2 * strengths[z] * (start.params - goal), atol=1e-5)
    assert {float(s) > 0 for s in strengths.values()} == {True, False}


def test_a_pull_never_goes_past_its_goal():
    made = budgeted(learning_rate=50.0)
    start = loop.begin(made)
    state = replace(start, method=replace(start.method, w_max=start.params + 1.0))
    strength, rates = max(made.method.strengths(made.plan).values()), 50.0
    assert strength * rates > 2  # unbounded, it would overshoot
    plain = replace(made, method=replace(made.method, penalty=False))
    apart = rows(made, state=state, rng=RNG) - rows(plain, state=state, rng=RNG)
    low = [i for i, z in enumerate(made.plan.multipliers) if z == max(made.plan.multipliers)]
    assert torch.allclose(apart[low], torch.ones(len(low), len(start.params)), atol=1e-3)


@pytest.mark.parametrize("method", ["udp-fl", "udp-fl-paper"])
def test_w_max_is_the_mean_of_the_messages_of_those_with_the_largest_budget(method):
    made = job(
        nn.Linear(FEATURES, CLASSES), federation((6, 12, 18, 12)), method=method, budgets="0.5:0.5,4:0.5",
        epsilon=4.0, learning_rate=0.2,
    )  # fmt: skip
    start = loop.begin(made)
    assert torch.equal(start.method.w_max, start.params)
    done = play(made, state=start, rng=RNG)
    sent, after = done.sent["update"] * done.sent.weight[:, None], done.after
    top = [i for i, z in enumerate(made.plan.multipliers) if z == min(made.plan.multipliers)]
    total = sum(sent[i] for i in top) / sum(held(made).all_sizes()[i] / 12 for i in top)
    assert torch.allclose(after.method.w_max, start.params + total, atol=1e-5)
    assert torch.allclose(after.params, start.params + sent.mean(dim=0), atol=1e-5)
    assert made.method.decided(after, made.plan)["penalty"][f"{max(made.plan.multipliers):.6g}"] > 0
    nobody = play(made, [], after, rng=RNG).after
    assert torch.equal(nobody.method.w_max, after.method.w_max)  # kept where none of them came


def test_records_of_the_server_that_nothing_uses_are_remarked():
    unused = "makes no use of the records that server_data takes"
    for keys, said in (({"path": "none"}, True), ({"path": "bezier"}, False), ({"method": "dp-sgd"}, True)):
        made = job(**({"method": "udp-fl", "epsilon": 8.0, "server_data": 0.25} | keys))
        assert any(unused in note for note in made.notes) == said


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_the_noise_of_a_step_is_foreseen_as_it_is_drawn(mechanism):
    for managed in (False, True):
        made = silent(mechanism=mechanism, epsilon=5.0, rounds=4, managed=managed)
        drawn = float(moved(made).std()) * 10  # a full batch of ten, clip 1, rate 1
        assert pricing.step_noise(made.method, made.plan) == pytest.approx(drawn, rel=0.05)


def test_staircase_noise_that_cannot_be_drawn_is_refused_before_anything_is_charged():
    with pytest.raises(SpecError, match="shells"):
        silent(mechanism="staircase", epsilon=1e-9)
    found = harmonizer.choose(harmonizer.HarmonizerSetting(Repeated(GaussianEvent(1.0), 3), WIDE, 1e-7, 1e-5))
    assert any(c.mechanism == "staircase" and "shells" in c.note for c in found.candidates)
