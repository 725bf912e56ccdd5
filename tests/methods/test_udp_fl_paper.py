import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm
from torch import nn

from sordino.comparisons import compare
from sordino.contract.method import Local
from sordino.core.errors import SpecError
from sordino.methods.udp_fl import printed_harmonizer as harmonizer
from sordino.methods.udp_fl import published_code as code
from sordino.methods.udp_fl_paper import UdpFlPaper
from sordino.privacy import loss_distributions as losses
from sordino.privacy.accountants import gdp, pld
from sordino.privacy.algebra import non_private
from sordino.privacy.clip import Bounded
from sordino.privacy.events import GaussianEvent, NonPrivate, Repeated, Sampled
from sordino.privacy.mechanisms.laplace import LaplaceL2Event
from sordino.privacy.mechanisms.staircase import PerCoordinateStaircaseEvent, Staircase, best_gamma, top
from sordino.privacy.pairs import Atoms
from sordino.privacy.release import Unproven
from sordino.privacy.tightest import epsilon
from sordino.runs import loop
from support.methods import price, rows
from support.problems import federation, job, linear, plan
from support.silent import silent_job
from support.udp import RNG, records, rounds_of

DIM, WIDE = 26_010, 2000


def paper_plan(epsilon, dim=DIM):
    """150 rounds of two local steps on 5 % of the records, as in the paper's Section 5.2; uncalibrated."""
    local = Local(steps=2, batch_rate=0.05)
    return plan(rounds=150, local=local, epsilon=epsilon, dim=dim, noise_multiplier=None)


def silent(clip=1.0, **keys):
    made = silent_job(WIDE, method="udp-fl-paper", learning_rate=1.0, clip=clip, **keys)
    return made, rows(made, rng=RNG).flatten().numpy()


def test_in_one_dimension_the_ordering_is_the_papers():
    """Standard deviations of the noise at epsilon = 8: the staircase before Gaussian noise."""
    z = {m: UdpFlPaper(mechanism=m).claimed_noise(paper_plan(8.0)) for m in ("gaussian", "staircase")}
    std = z["gaussian"], math.sqrt(Staircase(1 / z["staircase"]).variance(1.0))
    assert std == pytest.approx((0.8563, 0.7784), rel=2e-3) and std[1] < std[0]


@pytest.mark.parametrize(("claimed", "lam", "after_one"), [(2.0, 0.5665, 57), (6.0, 1.3973, 257), (8.0, 1.7138, 379)])
def test_one_step_of_per_coordinate_staircase_noise_costs_hundreds(claimed, lam, after_one):
    """THEORY's counterexample: the dense shift, composed exactly, and the bound that is accounted."""
    gamma, shift = best_gamma(lam), DIM**-0.5
    p, b = top(lam, gamma, shift), math.exp(-lam)
    rest = 1 - p - p * b
    pair = Atoms([-lam, 0.0, lam], [p * b, rest, p], [p, rest, p * b], symmetric=True)
    exact = losses.epsilon([pair], [DIM], 1e-5)
    assert exact == pytest.approx(after_one, abs=1)
    charged = epsilon(PerCoordinateStaircaseEvent(lam, gamma, DIM, 2), 1e-5)
    assert exact <= charged < 1.1 * exact
    assert charged > 20 * claimed


def test_what_is_charged_is_what_holds_for_the_vector():
    made = replace(paper_plan(8.0), noise_multiplier=0.5)

    def cost(mechanism, dim=DIM):
        (found,) = price(UdpFlPaper(mechanism=mechanism), replace(made, dim=dim))
        return found.event

    assert cost("gaussian") == Repeated(Sampled(GaussianEvent(0.5), 0.05), 2)
    assert cost("laplace") == Repeated(Sampled(LaplaceL2Event(0.5), 0.05), 2)
    assert cost("staircase") == Repeated(Sampled(PerCoordinateStaircaseEvent(2.0, best_gamma(2.0), DIM, 2), 0.05), 2)
    assert epsilon(cost("staircase", dim=1), 1e-5) < 3  # of a single number the claim holds


def test_laplace_noise_costs_more_than_is_claimed():
    method, made = UdpFlPaper(mechanism="laplace"), paper_plan(2.0)
    total = epsilon(Repeated(price(method, made)[0].event, 150), 1e-5, pld.ROUGH)
    assert 2.5 < total < 3.2
    claim = method.claim(made)
    assert claim.epsilon == 2.0 and claim.scope == "total" and "26,010" in claim.sentence()


def test_gaussian_noise_makes_no_claim_that_does_not_hold():
    method, made = UdpFlPaper(mechanism="gaussian"), paper_plan(2.0)
    assert method.claim(made) is None
    total = epsilon(Repeated(price(method, made)[0].event, 150), 1e-5, pld.ROUGH)
    assert 0.99 * 2.0 < total <= 2.0
    assert UdpFlPaper().claim(replace(made, dim=1)) is None
    assert "does not hold" in UdpFlPaper().claim(made).sentence()
    assert "no accountant" in UdpFlPaper(mechanism="gaussian", reading="code").claim(made).sentence()


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "staircase"])
def test_every_coordinate_gets_the_noise_of_one_number(mechanism):
    made, noise = silent(clip=0.5, mechanism=mechanism, epsilon=20.0)
    z = made.method.multiplier(made.plan)
    noise = noise * 10 / 0.5  # in units of the clip, of the sum
    laws = {"gaussian": norm(scale=z).cdf, "laplace": laplace(scale=z).cdf}
    one = Staircase(1 / z)
    right = laws.get(mechanism, lambda x: one.cdf(x, 1.0))
    assert kstest(noise, right).pvalue > 1e-3
    assert kstest(noise / 1.1, right).pvalue < 1e-3
    assert made.method.noise(loop.begin(made), made.plan) == pytest.approx(noise.std() * 0.5 / 10, rel=0.1)


# --- the published code


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "staircase"])
def test_the_codes_noise_ignores_epsilon(mechanism):
    (one, noise), (_, same) = (silent(mechanism=mechanism, reading="code", epsilon=e) for e in (0.1, 50.0))
    assert np.array_equal(noise, same)
    want = {"gaussian": 0.1, "laplace": math.sqrt(2), "staircase": code.off_by_one_std()}[mechanism]
    assert noise.std() == pytest.approx(want, rel=0.03)
    assert one.method.noise(loop.begin(one), one.plan) == pytest.approx(want)


def test_the_codes_staircase_is_off_by_one():
    drawn = code.off_by_one(Bounded(torch.zeros(20, 5000, dtype=torch.float64), 2.0), RNG.rows(range(20)))
    size = drawn.flatten().numpy() / code.STEP
    assert np.abs(size).mean() == pytest.approx(0.7443, abs=2e-3)  # 0.2592 were meant
    assert ((np.abs(size) >= 0.502) & (np.abs(size) <= 1)).mean() == pytest.approx(0.9865, abs=2e-3)
    assert size.std() * code.STEP == pytest.approx(code.off_by_one_std(), rel=0.01)
    right = Staircase(code.LAMBDA, code.GAMMA)
    assert right.mean_abs(1.0) == pytest.approx(0.2592, abs=5e-5)
    assert kstest(size[:2000], lambda x: right.cdf(x, 1.0)).pvalue < 1e-6


def test_one_record_moves_the_clipped_mean_of_a_batch_by_twice_the_clip():
    """The clip of a batch is no clip of a record: turning one of twelve round turns the whole gradient round."""
    x = torch.zeros(12, 20)
    x[:, 0] = 1e-3
    pair = []
    for wild in (1e4, -1e4):
        records = x.clone()
        records[0, 0] = wild
        layer = nn.Linear(20, 1, bias=False)
        nn.init.zeros_(layer.weight)
        made = job(layer, [(records, torch.ones(12))], "squared_error", method="udp-fl-paper", reading="code",
                   mechanism="gaussian", learning_rate=1.0)  # fmt: skip
        pair.append(rows(made, rng=RNG))  # the same noise
    assert float((pair[0] - pair[1]).norm()) == pytest.approx(4.0, rel=1e-4)


def test_what_the_codes_noise_costs():
    made = plan(local=Local(steps=3), dim=DIM)

    def event(mechanism):
        (found,) = price(UdpFlPaper(mechanism=mechanism, reading="code"), made)
        assert found.relation == "replace"
        return found.event

    assert event("gaussian") == Repeated(GaussianEvent(0.025), 3)
    assert gdp.epsilon_of_mu(40.0, 1e-5) > 900  # one step
    assert event("laplace") == Repeated(LaplaceL2Event(0.25), 3)
    assert isinstance(event("staircase").event, NonPrivate) and math.isinf(epsilon(event("staircase"), 1e-5))
    assert "400 steps of the staircase" in non_private(event("staircase"))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "staircase"])
def test_the_code_sends_losses_as_they_are(mechanism):
    made = job(method="udp-fl-paper", mechanism=mechanism, reading="code", algorithm="q-fedavg")
    gradient, losses = made.method.releases(made.plan)
    assert isinstance(losses.mechanism, Unproven) and isinstance(gradient.mechanism, Unproven) == (
        mechanism == "staircase"
    )
    assert math.isinf(made.promise.epsilon) and gradient.relation == "replace"
    if mechanism != "staircase":
        assert made.promise.reason == "the clients' losses are sent without noise"
    assert torch.isfinite(rounds_of(made)[0][-1].params).all()


def test_nonsense_is_refused():
    for keys, words in (
        ({"mechanism": "l2-laplace"}, "mechanism must be"),
        ({"reading": "2-d"}, "reading must be"),
        ({"batch_sampling": "fixed"}, "Poisson"),
        ({"mechanism": "auto", "reading": "code"}, "no Harmonizer"),
        ({"reselect": 2}, "reselect needs mechanism = auto"),
        ({"prior": 1.5}, "prior"),
        ({"profile": "rich"}, "profile must be"),
        ({"data": "odd"}, "data must be"),
        ({"path": "zigzag"}, "path must be"),
        ({"path_lr": 0.0}, "path_lr"),
    ):
        with pytest.raises(SpecError, match=words):
            UdpFlPaper(**keys)


def test_it_learns_in_both_readings():
    for reading in ("1-d", "code"):
        made = job(method="udp-fl-paper", mechanism="gaussian", reading=reading, epsilon=50.0,
                   clients=federation((200,) * 4))  # fmt: skip
        data, states = records(made, range(4)), rounds_of(made, 10)[0]
        state = states[0]
        before = float(made.model.loss(loop.trained(made, state.params)(data.x), data.y).mean().detach())
        state = states[-1]
        after = float(made.model.loss(loop.trained(made, state.params)(data.x), data.y).mean().detach())
        assert after < 0.95 * before


# --- budgets, penalty and path


def budgeted(**keys):
    keys = {"mechanism": "laplace", "budgets": "0.5:0.5,4:0.5", "epsilon": 4.0} | keys
    return job(linear(), method="udp-fl-paper", **keys)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "staircase"])
def test_every_client_has_the_noise_of_its_own_budget(mechanism):
    made, _ = silent(clip=0.5, mechanism=mechanism, budgets="2:0.5,20:0.5", epsilon=20.0, penalty=False)
    own = made.plan.multipliers
    alone = {e: UdpFlPaper(mechanism=mechanism).claimed_noise(replace(made.plan, multipliers=(), epsilon=e))
             for e in (2.0, 20.0)}  # fmt: skip
    assert sorted(set(own)) == sorted(alone.values()) and alone[2.0] > 3 * alone[20.0]
    drawn = rows(made, rng=RNG).numpy() * 10 / 0.5
    for z, noise in zip(own, drawn, strict=True):
        one = Staircase(1 / z)
        right = {"gaussian": norm(scale=z).cdf, "laplace": laplace(scale=z).cdf}.get(
            mechanism, partial(one.cdf, bound=1.0)
        )
        assert kstest(noise, right).pvalue > 1e-3
        both = np.concatenate([row for row, other in zip(drawn, own, strict=True) if other == z])
        assert kstest(both / 1.25, right).pvalue < 1e-3
        assert kstest(noise, norm(scale=noise.std()).cdf).pvalue < 1e-3 or mechanism == "gaussian" or z > 1
    told = {z: harmonizer.deviation(mechanism, z) * 0.5 / 10 for z in own}
    if mechanism != "staircase":
        assert made.method.noise(loop.begin(made), made.plan) == pytest.approx(sum(told[z] for z in own) / 4)
    else:  # whose deviation is not in proportion to the multiplier
        assert made.method.noise(loop.begin(made), made.plan) is None
        found = made.method.decided(replace(loop.begin(made), round=1), made.plan)["deviations"]
        assert found == pytest.approx({f"{z:.6g}": std for z, std in told.items()})
        (text,) = made.method.explain([{"round": 1, "decided": {"deviations": found}}])
        assert all(f"{std:.4g} with noise multiplier {z:.6g}" in text for z, std in told.items())


def test_what_is_accounted_is_what_holds_for_the_client_with_the_least_noise():
    made = budgeted(budgets="0.5:0.5,2:0.5")  # nobody has the 4 of the run
    least = min(made.plan.multipliers)
    assert price(made.method, made.plan)[0].event == LaplaceL2Event(least)
    assert made.promise.epsilon == pytest.approx(epsilon(Repeated(LaplaceL2Event(least), 3), 1e-5))
    assert made.method.claim(made.plan).epsilon == 2.0 < made.promise.epsilon
    right = budgeted(mechanism="gaussian")  # whose claim holds
    assert right.method.claim(right.plan) is None and 0.99 * 4 < right.promise.epsilon <= 4
    assert "4 clients have a budget of epsilon 0.5" in " ".join(made.notes)


def test_budgets_above_that_of_the_run_count_as_that():
    made = budgeted(budgets="1:0.5,9:0.5")
    top = UdpFlPaper(mechanism="laplace").claimed_noise(replace(made.plan, multipliers=()))
    assert min(made.plan.multipliers) == top and made.method.claim(made.plan).epsilon == 4.0


def test_lambda_by_hand():
    for mechanism in ("gaussian", "laplace", "staircase", "auto"):
        made = budgeted(mechanism=mechanism)
        strengths = made.method.strengths(made.plan)
        assert strengths[max(strengths)] == pytest.approx((4 - 0.5) / 4) and strengths[min(strengths)] == 0


def test_the_penalty_pulls_clients_with_less_budget_and_no_one_else():
    made = budgeted(learning_rate=0.2)
    plain = replace(made, method=replace(made.method, penalty=False))
    start = loop.begin(made)
    goal = start.params + torch.linspace(-1, 1, len(start.params))
    state = replace(start, method=replace(start.method, w_max=goal))
    pulled, free = rows(made, state=state, rng=RNG), rows(plain, state=state, rng=RNG)
    poor = max(made.plan.multipliers)
    for row, z in zip(pulled - free, made.plan.multipliers, strict=True):  # w - eta (g + lambda_k (w - w_max))
        assert torch.allclose(row, -0.2 * 0.875 * (z == poor) * (start.params - goal), atol=1e-5)


def test_the_code_has_no_budgets_and_methods_without_noise_of_their_own_take_none():
    with pytest.raises(SpecError, match="uses no epsilon"):
        budgeted(reading="code")
    with pytest.raises(SpecError, match="whose epsilon is accounted, not with geodp-paper"):
        job(method="geodp-paper", budgets="0.5:0.5,4:0.5")
    found = compare.cells(["udp-fl-paper", "geodp-paper"], [4.0], 1, {"budgets": "0.5:0.5,4:0.5"}, {})
    assert [c.spec.budgets for c in found] == ["0.5:0.5,4:0.5", None]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd", "fedprox", "scaffold", "fedopt", "q-fedavg"])
@pytest.mark.parametrize("mechanism", ["auto", "staircase"])
def test_all_of_it_goes_with_the_algorithms_of_the_paper(algorithm, mechanism):
    steps = {} if algorithm == "fedsgd" else {"local_steps": 2}
    keys = {"path": "bezier", "server_data": 0.25, "path_steps": 2} | steps
    made = budgeted(algorithm=algorithm, mechanism=mechanism, **keys)
    after = rounds_of(made, 2)[0][-1]
    assert torch.isfinite(after.params).all() and after.params.shape == loop.begin(made).params.shape
    decided = made.method.decided(after, made.plan)
    assert len(decided["path_loss"]) == 11 and decided["path_loss"][0] == decided["straight_loss"][0]
    assert ("clients" in decided) == (mechanism == "auto")


@pytest.mark.parametrize("reading", ["1-d", "code"])
def test_the_path_is_that_of_the_sound_form(reading):
    """Unoptimised it is the mean; optimised it lowers the loss on the server's data."""
    keys = {"method": "udp-fl-paper", "mechanism": "gaussian", "reading": reading, "server_data": 0.25, "epsilon": 8.0}
    plain, losses = job(**keys), {}
    x, y = plain.plan.public.batch.x, plain.plan.public.batch.y
    for path, steps in (("none", 0), ("pairs", 9), ("polygon", 0), ("bezier", 15)):
        made = job(path=path, path_steps=steps, path_lr=0.5, **keys)
        params = rounds_of(made, 2)[0][-1].params
        losses[path] = float(nn.functional.cross_entropy(loop.trained(made, params)(x), y).detach())
    assert losses["pairs"] == losses["none"] == pytest.approx(losses["polygon"], rel=1e-5)
    assert losses["bezier"] < 0.95 * losses["none"]
    with pytest.raises(SpecError, match="server_data"):
        job(method="udp-fl-paper", path="bezier")


def test_penalty_and_path_are_explained():
    made = budgeted(path="polygon", server_data=0.25)
    decided = made.method.decided(rounds_of(made)[0][-1], made.plan)
    first, second, third = made.method.explain([{"round": 1, "decided": decided}])
    assert {first.split("lambda = ")[1], second.split("lambda = ")[1]} == {"0.000.", "0.875."}
    assert third.startswith("Round 1: mean loss between the first two models ")
    plain = job(method="udp-fl-paper")
    assert plain.method.decided(rounds_of(plain)[0][-1], plain.plan) is None


def test_a_run_from_the_shell_prints_the_claim(sordino_command, small_npz, tmp_path):
    done = sordino_command(
        "run", "--method", "udp-fl-paper", "--dataset", str(small_npz), "--clients", "4", "--rounds", "2", "--epsilon",
        "8", "--seed", "1", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["claim"]["epsilon"] == 8 and "does not hold" in told["claim"]["sentence"]
    assert told["guarantee"]["epsilon"] is None or told["guarantee"]["epsilon"] > 8
