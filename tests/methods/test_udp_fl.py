import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm
from torch import nn

from problems import CLASSES, FEATURES, federation, job, plan, played, rows_of
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.methods import harmonizer
from sordino.methods.base import Local
from sordino.methods.udp_fl import UdpFl
from sordino.privacy.accountants import zcdp
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Composed, FixedSize, Gaussian, Repeated, Sampled
from sordino.privacy.mechanisms.laplace import LaplaceEvent, LaplaceL2Event
from sordino.privacy.mechanisms.staircase_ball import StaircaseBallEvent
from sordino.runs import loop

RNG = Stream.research(4)
CPU = torch.device("cpu")
WIDE = 2000


def silent(**keys):
    """2001 weights whose gradient is zero."""
    layer = nn.Linear(WIDE, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    zeros = [(torch.zeros(10, WIDE), torch.zeros(10)) for _ in range(4)]
    return job(layer, zeros, "squared_error", method="udp-fl", learning_rate=1.0, **keys)


def moved(made, plan=None, ids=range(4)):
    data = made.clients.fetch(ids, CPU)
    return rows_of(made, loop.begin(made), data, plan or made.plan, RNG.rows(ids))


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
    made, z = UdpFl(mechanism=mechanism), 0.25
    rows = made.add(Bounded(torch.zeros(4000, 1), 2.0), z, loop.State(torch.zeros(1)), plan(), RNG.rows(range(4000)))
    want = 2.0 * harmonizer.deviation(mechanism, z, 1)
    assert float(rows.std()) == pytest.approx(want, rel=0.07)


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_clients_with_budgets_of_their_own_have_noise_of_their_own(mechanism):
    made = silent(mechanism=mechanism, budgets="0.5:0.5,4:0.5", epsilon=4.0, penalty=False)
    own = np.array(made.plan.multipliers)
    assert len(set(own)) == 2 and min(own) == pytest.approx(made.plan.z)
    for z, row in zip(own, moved(made), strict=True):
        want = harmonizer.deviation(mechanism, float(z), WIDE + 1) / 10
        assert float(row.std()) == pytest.approx(want, rel=0.09)
    together, alone = moved(made), torch.cat([moved(made, ids=[i]) for i in range(4)])
    assert torch.allclose(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_one_record_moves_the_clipped_sum_by_no_more_than_its_bound(mechanism):
    wild = [(x * 10.0**k, y) for k, (x, y) in enumerate(federation((6, 6, 6, 6)))]
    made = job(method="udp-fl", clients=wild, mechanism=mechanism, clip=0.3)
    state, data = loop.begin(made), made.clients.fetch(range(4), CPU)
    whole = made.method.clipped(state.params, data, made.model, state, made.plan, [0] * 4, None)
    keep = torch.tensor([i % 6 != 2 for i in range(24)])
    less = made.method.clipped(state.params, data.where(keep), made.model, state, made.plan, [0] * 4, None)
    apart = (whole.value - less.value).double()
    order = harmonizer.NORMS[mechanism]
    moved_by = apart.abs().sum(dim=1) if order == 1 else apart.norm(dim=1)
    wide = harmonizer.dense_l1(made.plan.dim) if order == 1 else 1.0
    assert whole.norm == order and whole.bound == pytest.approx(0.3 * wide) and bool((moved_by <= whole.bound).all())
    assert float(moved_by.max()) > 0.9 * whole.bound  # the records do pull
    if order == 1:  # a clip to L2 norm C, or to the L1 norm that all such vectors have, would let more or less through
        assert float(apart.norm(dim=1).max()) > 1.02 * 0.3 and whole.bound < 0.9 * 0.3 * math.sqrt(made.plan.dim)
    with pytest.raises(SpecError, match="norm"):  # noise made for one norm is not added to a bound in another
        other = Bounded(whole.value, whole.bound, 3 - order)
        made.method.add(other, 1.0, state, made.plan, RNG.rows(range(4)))


# --- accounting


def test_what_is_charged():
    def cost(mechanism, local=None, sampling="poisson", **keys):
        keys = {"dim": 100, "local": local or Local(steps=4)} | keys
        (found,) = UdpFl(mechanism=mechanism, batch_sampling=sampling).costs(plan(noise_multiplier=2.0, **keys))
        return found.event

    assert cost("gaussian") == Repeated(Gaussian(2.0), 4)
    assert cost("l2-laplace") == Repeated(LaplaceL2Event(2.0), 4)
    assert cost("laplace", Local(batch_rate=0.1)) == Repeated(Sampled(LaplaceEvent(2.0), 0.1), 1)
    assert cost("staircase") == Repeated(StaircaseBallEvent(0.5), 4)
    assert cost("auto") == Repeated(Gaussian(2.0), 4)
    third = Local(batch_rate=None, batch_size=4)
    assert cost("staircase", third, "fixed") == Repeated(FixedSize(StaircaseBallEvent(1.0), 4, 12), 1)  # two steps
    from sordino.algorithms.q_fedavg import QFedAvg

    both = cost("laplace", Local(), algorithm=QFedAvg())
    assert both == Composed((Repeated(LaplaceEvent(2.0), 1), LaplaceEvent(2.0)))


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_the_promise_is_kept_and_used(mechanism):
    made = job(method="udp-fl", mechanism=mechanism, epsilon=3.0, rounds=7)
    assert 0.99 * 3.0 < made.promise.epsilon <= 3.0


def test_three_laplace_rounds_by_hand():
    made = job(method="udp-fl", mechanism="laplace", epsilon=3.0, rounds=3, delta=1e-9)
    assert 3 / made.plan.z == pytest.approx(3.0, rel=1e-3)  # one epsilon a round


def test_free_choice_is_charged_by_rho_alone():
    made = job(method="udp-fl", reselect=2, epsilon=3.0, rounds=20)
    (cost,) = made.method.costs(made.plan)
    assert cost.event == Repeated(LaplaceL2Event(made.plan.z), 1)
    rho = 20 / (2 * made.plan.z**2)
    assert made.promise.epsilon <= 3.0 < zcdp.epsilon(Repeated(LaplaceL2Event(0.99 * made.plan.z), 20), 1e-5)
    decided = made.method.decided(played(made, 1)[0][-1], made.plan)
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
    state = played(one, 2)[0][-1]  # a frozen transcript
    assert one.method.decided(state, one.plan) == two.method.decided(state, two.plan)
    assert one.method.noise_of(state, one.plan) == two.method.noise_of(state, two.plan)
    noises = []
    for made in (one, two):
        data = made.clients.fetch(range(8), CPU)
        quiet = replace(made.plan, noise_multiplier=1e-9)
        noises.append(rows_of(made, state, data, made.plan, RNG.rows(range(8))))
        noises[-1] = noises[-1] - rows_of(made, state, data, quiet, RNG.rows(range(8)))
    assert torch.allclose(noises[0], noises[1], atol=1e-5) and float(noises[0].std()) > 1e-3


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
    for name, rows in (("sparse", sparse + noise), ("dense", dense + noise), ("nothing", noise)):
        after = replace(made.method.merge(state, rows, made.plan, RNG), round=1)
        chosen[name] = made.method.noise_of(after, made.plan)
        decided = made.method.decided(after, made.plan)
        assert decided["mechanism"] == "gaussian"  # the round that was
        assert decided["next"]["candidates"][0]["mechanism"] == chosen[name]
        assert made.method.costs(made.plan)[0].event == Repeated(LaplaceL2Event(made.plan.z), 1)
    assert chosen == {"sparse": "l2-laplace", "dense": "gaussian", "nothing": "gaussian"}
    after = replace(made.method.merge(state, sparse + noise, made.plan, RNG), round=1)
    data = made.clients.fetch(range(4), CPU)
    rows = rows_of(made, after, data, made.plan, RNG.rows(range(4))).flatten().numpy()
    assert kstest(rows, laplace(scale=made.plan.z / 10).cdf).pvalue > 1e-3  # and it is Laplace noise at the same scale
    assert kstest(rows, norm(scale=made.plan.z / 10).cdf).pvalue < 1e-3


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_the_sensitivity_in_use_is_recorded_in_the_norm_of_the_noise(mechanism):
    made = job(method="udp-fl", mechanism=mechanism, clip=0.4)
    found = made.method.decided(played(made, 1)[0][-1], made.plan)
    state, data = loop.begin(made), made.clients.fetch(range(8), CPU)
    used = made.method.clipped(state.params, data, made.model, state, made.plan, [0] * 8, None)
    assert (found["norm"], found["sensitivity"]) == (used.norm, pytest.approx(used.bound))
    assert found["scale"] == pytest.approx(made.plan.z * used.bound)


def test_delta_zero_is_a_demand_of_its_own():
    made = job(method="udp-fl", pure=True, rounds=2, local_steps=2)
    decided = made.method.decided(played(made, 1)[0][-1], made.plan)
    assert decided["mechanism"] in ("laplace", "staircase")
    assert decided["epsilon_at_delta_0"] == pytest.approx(2 / made.plan.z)


# --- heterogeneity


def budgeted(**keys):
    return job(nn.Linear(FEATURES, CLASSES), method="udp-fl", budgets="0.5:0.5,4:0.5", epsilon=4.0, **keys)


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
    state = replace(start, extra=start.extra | {"w_max": goal})
    data = made.clients.fetch(range(8), CPU)
    dim = len(start.params)
    pulled = rows_of(made, state, data, made.plan, RNG.rows(range(8)))[:, :dim]
    free = rows_of(plain, state, data, made.plan, RNG.rows(range(8)))
    strengths = made.method.strengths(made.plan)
    for row, z in zip(pulled - free, made.plan.multipliers, strict=True):  # w - eta (g + lambda_k (w - w_max))
        assert torch.allclose(row, -0.2 * strengths[z] * (start.params - goal), atol=1e-5)
    assert {float(s) > 0 for s in strengths.values()} == {True, False}


def test_a_pull_never_goes_past_its_goal():
    made = budgeted(learning_rate=50.0)
    quiet = replace(made.plan, noise_multiplier=1e-9)
    start = loop.begin(made)
    state = replace(start, extra=start.extra | {"w_max": start.params + 1.0})
    strength, rates = max(made.method.strengths(made.plan).values()), 50.0
    assert strength * rates > 2  # unbounded, it would overshoot
    data = made.clients.fetch(range(8), CPU)
    dim = len(start.params)
    rows = rows_of(made, state, data, quiet, RNG.rows(range(8)))[:, :dim]
    plain = replace(made, method=replace(made.method, penalty=False))
    free = rows_of(plain, state, data, quiet, RNG.rows(range(8)))
    low = [i for i, z in enumerate(made.plan.multipliers) if z == max(made.plan.multipliers)]
    assert torch.allclose((rows - free)[low], torch.ones(len(low), dim), atol=1e-3)


@pytest.mark.parametrize("method", ["udp-fl", "udp-fl-paper"])
def test_w_max_is_the_mean_of_the_messages_of_those_with_the_largest_budget(method):
    made = job(
        nn.Linear(FEATURES, CLASSES), federation((6, 12, 18, 12)), method=method, budgets="0.5:0.5,4:0.5",
        epsilon=4.0, learning_rate=0.2,
    )  # fmt: skip
    start = loop.begin(made)
    assert torch.equal(start.extra["w_max"], start.params)
    data, dim = made.clients.fetch(range(4), CPU), len(start.params)
    rows = rows_of(made, start, data, made.plan, RNG.rows(range(4)))
    after = made.method.merge(start, rows, made.plan, RNG)
    top = [i for i, z in enumerate(made.plan.multipliers) if z == min(made.plan.multipliers)]
    total = sum(rows[i, :dim] for i in top) / sum(made.clients.all_sizes()[i] / 12 for i in top)
    assert torch.allclose(after.extra["w_max"], start.params + total, atol=1e-5)
    assert torch.allclose(after.params, start.params + rows[:, :dim].mean(dim=0), atol=1e-5)
    assert made.method.decided(replace(after, round=1), made.plan)["penalty"][f"{max(made.plan.multipliers):.6g}"] > 0
    nobody = made.method.merge(after, rows[:0], made.plan, RNG)
    assert torch.equal(nobody.extra["w_max"], after.extra["w_max"])  # kept where none of them came


def test_records_of_the_server_that_nothing_uses_are_remarked():
    unused = "makes no use of the records that server_data takes"
    for keys, said in (({"path": "none"}, True), ({"path": "bezier"}, False), ({"method": "dp-sgd"}, True)):
        made = job(**({"method": "udp-fl", "epsilon": 8.0, "server_data": 0.25} | keys))
        assert any(unused in note for note in made.notes) == said


@pytest.mark.parametrize("mechanism", harmonizer.MECHANISMS)
def test_the_noise_of_a_step_is_foreseen_as_it_is_drawn(mechanism):
    for managed in (False, True):
        made = silent(mechanism=mechanism, epsilon=5.0, rounds=4, managed=managed)
        drawn = float(moved(made)[:, : WIDE + 1].std()) * 10  # a full batch of ten, clip 1, rate 1
        assert made.method.step_noise(made.plan) == pytest.approx(drawn, rel=0.05)


def test_staircase_noise_that_cannot_be_drawn_is_refused_before_anything_is_charged():
    with pytest.raises(SpecError, match="shells"):
        silent(mechanism="staircase", epsilon=1e-9)
    found = harmonizer.choose(harmonizer.Setting(Repeated(Gaussian(1.0), 3), WIDE, 1e-7, 1e-5))
    assert any(c.mechanism == "staircase" and "shells" in c.note for c in found.candidates)
