import json

import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.methods import _claims as claims
from sordino.methods.nbafl_paper import NbAFLPaper
from sordino.privacy.accountants import gdp
from sordino.runs import loop
from support.methods import merged, price, rows
from support.problems import federation, job, linear
from support.silent import silence, silent_job

RNG = Stream.research(6)


def sent(made, state):
    return rows(made, state=state, rng=RNG)


def test_the_noise_is_that_of_the_formula():
    made = silent_job(3000, method="nbafl-paper", clip=2.0, rounds=5, epsilon=4.0)
    std = claims.nbafl_uplink_std(2.0, 10, 4.0, 1e-5, exposures=5)
    noise = sent(made, loop.begin(made)).flatten().numpy()
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3


def test_the_downlink_has_noise_only_where_rounds_are_many():
    made = job(method="nbafl-paper", rounds=30, max_participations=2)  # 30 > 2 sqrt(8)
    state = loop.begin(made)
    moved = merged(made.method, made.plan, state, silence(8, made.plan.dim), RNG).params - state.params
    wanted = claims.nbafl_downlink_std(20.0, 12, 2.0, 1e-5, rounds=30, exposures=2, clients=8)
    assert float(moved.std()) == pytest.approx(wanted, rel=0.2) and wanted > 0
    assert job(method="nbafl-paper", rounds=30).method.downlink_std(job(method="nbafl-paper", rounds=30).plan) == 0


def test_where_some_clients_are_drawn_the_downlink_can_be_that_of_scheduling():
    keys = {"method": "nbafl-paper", "rounds": 40, "max_participations": 8, "client_rate": 0.5}
    plain, made = job(**keys), job(**keys, scheduling="k-of-n")
    wanted = claims.nbafl_scheduled_std(20.0, 12, 2.0, 1e-5, rounds=40, exposures=8, clients=8, drawn=4.0)
    state = loop.begin(made)
    moved = merged(made.method, made.plan, state, silence(4, made.plan.dim), RNG).params - state.params
    assert float(moved.std()) == pytest.approx(wanted, rel=0.2) and wanted > 0
    assert abs(plain.method.downlink_std(plain.plan) / wanted - 1) > 0.3
    assert price(plain.method, plain.plan) == price(made.method, made.plan)  # the server is charged the same
    with pytest.raises(SpecError, match="scheduling"):
        job(method="nbafl-paper", scheduling="some")


def slope(record):
    """THEORY 4.3: least squares in one weight, 499 zero records and one; the weight after training, clipped to 1."""
    x, y = torch.zeros(500, 1), torch.zeros(500)
    x[0], y[0] = 5.0, record
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    made = job(layer, [(x, y)], "squared_error", method="nbafl-paper", clip=1.0, epsilon=1e9, learning_rate=30.0)
    return float(sent(made, loop.begin(made))[0, 0])  # at this epsilon the noise is nothing


def test_one_record_moves_the_clipped_weights_by_the_whole_ball():
    """Negative control: the claim needs 2C/m = 0.004; it is 2C."""
    moved = slope(100.0) - slope(-100.0)
    assert moved == pytest.approx(2.0, abs=1e-3)
    assert moved > 400 * (2 * 1.0 / 500)


def test_what_is_charged_is_the_true_sensitivity_of_a_client():
    made = job(method="nbafl-paper", rounds=4, clip=3.0)
    server = made.guarantee("server", 4, 4)
    std = claims.nbafl_uplink_std(3.0, 12, 2.0, 1e-5, exposures=4)
    assert server.epsilon == pytest.approx(gdp.epsilon_of_mu(2 * 6.0 / std, 1e-5), rel=1e-6)
    assert (server.unit, server.relation) == ("client", "replace")
    public = made.guarantee("public", 4, 4).epsilon
    assert public == pytest.approx(gdp.epsilon_of_mu(2 * 6.0 / (std * 7**0.5), 1e-5), rel=1e-6)
    assert 2.0 < public < server.epsilon  # more than was claimed, in a larger unit


def test_an_epsilon_of_a_round_has_the_noise_of_one_and_is_charged_for_all():
    made = job(method="nbafl-paper", rounds=30, max_participations=2, clip=3.0, scope="round")
    std = claims.nbafl_uplink_std(3.0, 12, 2.0, 1e-5, exposures=1)
    assert made.method.uplink(made.plan, 7) == std and made.method.downlink_std(made.plan) == 0
    assert made.method.claim(made.plan).scope == "round"
    whole = made.guarantee("server", 30, 2).epsilon
    assert whole == pytest.approx(gdp.epsilon_of_mu(2**0.5 * 6.0 / std, 1e-5), rel=1e-6)
    with pytest.raises(SpecError, match="scope"):
        job(method="nbafl-paper", scope="week")


def test_larger_clients_weigh_more_in_the_mean_and_in_what_is_charged():
    made = job(linear(), federation((10, 30)), method="nbafl-paper", epsilon=1e9)
    both = sent(made, loop.begin(made))
    alone = job(linear(), federation((10, 30))[1:], method="nbafl-paper", epsilon=1e9)
    assert torch.allclose(both[1], 1.5 * sent(alone, loop.begin(alone))[0], atol=1e-5)
    assert [c.viewer for c in price(made.method, made.plan)] == ["server"]  # two clients hide nothing in each other


def test_the_claim_names_its_flaw():
    said = NbAFLPaper().claim(job(method="nbafl-paper").plan).sentence()
    assert "does not hold" in said and "2C" in said and "epsilon = 2" in said


def test_the_command_line_prints_the_claim(small_npz, sordino_command):
    keys = ("--dataset", "small.npz", "--features", "none", "--clients", "4", "--rounds", "2", "--json")
    done = sordino_command("run", "--method", "nbafl-paper", *keys, cwd=small_npz.parent)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "It does not hold" in found["claim"]["sentence"] and found["claim"]["unit"] == "record"
    assert found["guarantee"]["unit"] == "client" and found["guarantee"]["epsilon"] > found["claim"]["epsilon"]


@pytest.mark.parametrize("method", ["nbafl-paper", "geodp-paper"])
def test_a_bound_on_every_weight_is_charged_for_all_of_them(method):
    """The reading clip_by = coordinate: weights in a box, whose diagonal is 2C sqrt(d)."""
    keys = {"method": method, "clip": 0.01, "epsilon": 1e9, "learning_rate": 50.0}
    made, whole = job(clip_by="coordinate", **keys), job(**keys)
    state = loop.begin(made)
    weights = state.params + sent(made, state)
    assert float(weights.abs().max()) <= 0.01 * (1 + 1e-4)
    assert float((weights.abs() > 0.0099).float().mean()) > 0.5  # they want to go further
    assert float(weights.norm(dim=1).max()) > 0.01 * 3  # and their norm is not what is bounded
    each, one = (price(m.method, m.plan)[0].event.noise_multiplier for m in (made, whole))
    assert one == pytest.approx(each * made.plan.dim**0.5)
    with pytest.raises(SpecError, match="clip_by"):
        job(**keys, clip_by="layer")
