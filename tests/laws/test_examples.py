"""The one-file methods of examples/plugins: they run, learn, resume, and cost what an independent computation says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import nn

import sordino
from sordino.contract.presence import Stragglers
from sordino.core import faults, plugin
from sordino.core.errors import RunError, SpecError
from sordino.privacy import shuffle, tightest
from sordino.privacy.accountants import gdp
from sordino.privacy.events import GaussianEvent, Repeated
from sordino.privacy.mechanisms.gaussian import Gaussian as Noise
from sordino.runs import loop
from support.methods import federation_of, play, price
from support.problems import charges, federation, held_out, job, linear, same_weights

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
NAMES = [path.stem.replace("_", "-") for path in sorted((EXAMPLES / "methods").glob("*.py"))]
MANY, TEST, DELTA = federation((4,) * 300), held_out(200), 1e-5
LEARN = {
    "sign-bits": {"epsilon": 60.0, "rounds": 8, "learning_rate": 0.2, "box": 0.2},
    "skellam-sum": {"epsilon": 8.0, "rounds": 5, "learning_rate": 0.5, "channel": "secure-sum"},
    "two-phases": {"epsilon": 8.0, "rounds": 5, "learning_rate": 0.5},
    "printed-form": {"epsilon": 8.0, "rounds": 5, "learning_rate": 0.5},
}


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, str(EXAMPLES))


def made(method, clients=MANY, **keys):
    return job(linear(), clients, method=method, **keys)


def train(out, method, **keys):
    keys = {"mode": "research", "device": "cpu", "out": str(out), "name": "it"} | LEARN[method] | keys
    return sordino.train(linear(), MANY, test=TEST, method=method, **keys)


def accuracy(module):
    with torch.no_grad():
        return float((module(TEST[0]).argmax(1) == TEST[1]).float().mean())


def test_they_are_short():
    assert NAMES == ["printed-form", "sign-bits", "skellam-sum", "two-phases"]
    for path in (EXAMPLES / "methods").glob("*.py"):
        code = path.read_text().split('"""', 2)[2]
        assert sum(bool(line.strip()) for line in code.splitlines()) <= 60, path.name


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("sign-bits", {}),
        ("sign-bits", {"channel": "shuffler"}),
        ("skellam-sum", {}),
        ("two-phases", {}),
        ("printed-form", {}),
    ],
    ids=str,
)
def test_they_learn(tmp_path, method, keys):
    found = train(tmp_path, method, **keys)
    assert accuracy(linear()) < 0.6 and accuracy(found.model) > 0.85
    asked = LEARN[method]["epsilon"]
    assert (
        math.isinf(found.guarantee.epsilon)
        if method == "printed-form"
        else 0.99 * asked < found.guarantee.epsilon <= asked
    )


# --- one-bit reports


def delta_of_responses(epsilon, each, times):
    """delta(epsilon) of randomized responses, summed over how many of them told the truth."""
    keep, total = 1 / (1 + math.exp(-each)), 0.0
    for k in range(times + 1):
        loss = (2 * k - times) * each
        total += math.comb(times, k) * keep**k * (1 - keep) ** (times - k) * max(0.0, -math.expm1(epsilon - loss))
    return total


@pytest.mark.parametrize(("rounds", "asked"), [(5, 3.0), (40, 4.0)])
def test_direct_reports_compose_as_randomized_responses(rounds, asked):
    found = made("sign-bits", epsilon=asked, rounds=rounds)
    level, epsilon = 1 / found.plan.z, found.promise.epsilon
    assert delta_of_responses(epsilon, level, rounds) <= DELTA < delta_of_responses(0.99 * epsilon, level, rounds)
    assert 0.995 * asked < epsilon <= asked and epsilon <= rounds * level * (1 + 1e-9)
    assert {v: found.guarantee(v, rounds, rounds).epsilon for v in ("server", "public", "client")} == dict.fromkeys(
        ("server", "public", "client"), epsilon
    )
    assert (found.promise.unit, found.promise.relation) == ("client", "replace")


def delta_of_clones(epsilon, level, reports):
    """delta(epsilon) of one shuffled round, by the pair of privacy/shuffle.py, written out over A + B and C."""
    keep, total = 1 / (1 + math.exp(-level)), 0.0
    for c in range(reports):
        a = np.arange(c + 2)
        one, other = binom.pmf(a - 1, c, 0.5), binom.pmf(a, c, 0.5)  # B = 1: A + 1; B = 0: A
        p, q = keep * one + (1 - keep) * other, (1 - keep) * one + keep * other
        total += binom.pmf(c, reports - 1, math.exp(-level)) * np.maximum(p - math.exp(epsilon) * q, 0).sum()
    return total


def test_shuffled_reports_are_amplified_by_the_others():
    found = made("sign-bits", epsilon=1.0, rounds=1, channel="shuffler")
    level, epsilon = 1 / found.plan.z, found.promise.epsilon
    assert delta_of_clones(epsilon, level, 300) <= DELTA < delta_of_clones(0.98 * epsilon, level, 300)
    assert level > 1.5 and epsilon <= 1.0
    five = made("sign-bits", epsilon=3.0, rounds=5, channel="shuffler")
    mixed = {n: Repeated(shuffle.ShuffledEvent(1 / five.plan.z, n), 5) for n in (300, 299)}
    assert five.promise.epsilon == pytest.approx(tightest.epsilon(mixed[300], DELTA), rel=1e-9)
    assert five.guarantee("client", 5, 5).epsilon == pytest.approx(tightest.epsilon(mixed[299], DELTA), rel=1e-9)
    direct = made("sign-bits", epsilon=3.0, rounds=5)
    assert 1 / five.plan.z > 3 * (1 / direct.plan.z)  # 2.34 against 0.60


def test_colluders_hide_nobody():
    found = made("sign-bits", epsilon=3.0, rounds=5, channel="shuffler", viewer="server+100")
    mixed = Repeated(shuffle.ShuffledEvent(1 / found.plan.z, 200), 5)
    assert found.promise.epsilon == pytest.approx(tightest.epsilon(mixed, DELTA), rel=1e-9)


@pytest.mark.parametrize("channel", ["direct", "shuffler"])
def test_a_report_is_one_bit_and_a_place(tmp_path, channel):
    found = train(tmp_path, "sign-bits", channel=channel, rounds=1)
    assert found.private.history[0].bytes_up == -(-300 * (1 + 32) // 8)
    one = play(made("sign-bits", channel=channel))
    assert one.sent["bit"].dtype == torch.bool and one.sent["place"].dtype == torch.int32
    assert (one.seen.ids is None) == (channel == "shuffler") and one.sent.weight is None


def test_both_channels_show_the_same_rows_and_lead_to_the_same_model():
    direct, mixed = (made("sign-bits", channel=c) for c in ("direct", "shuffler"))
    mixed = replace(mixed, plan=replace(direct.plan, channel=mixed.plan.channel))  # with the same noise
    one, other = play(direct), play(mixed)
    rows = [sorted(zip(p.seen["place"].tolist(), p.seen["bit"].tolist(), strict=True)) for p in (one, other)]
    assert rows[0] == rows[1] and not torch.equal(one.seen["place"], other.seen["place"])
    assert torch.allclose(one.after.params, other.after.params, atol=1e-5)


def test_the_server_takes_the_bias_off():
    """The mean of many reports is the mean update, where no coordinate is beyond the box."""
    few = federation((4,) * 50)
    found = made("sign-bits", few * 60, box=0.5, learning_rate=0.1, epsilon=3000.0)  # 3000 clients
    exact = made("none", few, learning_rate=0.1)
    state, (noisy, true) = loop.begin(found), (play(m) for m in (found, exact))
    error = (noisy.after.params - true.after.params).double()
    deviation = 0.5 * math.sqrt(63 / 3000) / math.tanh(0.5 / found.plan.z)
    assert float(error.std()) < 1.3 * deviation and abs(float(error.mean())) < 4 * deviation / 63**0.5
    assert float((true.after.params - state.params).norm()) > 0.1


# --- whole numbers


def test_whole_numbers_are_priced_by_their_curve():
    """Agarwal et al. (2021), Theorem 3.5, with bounds of the lattice computed here; the improved conversion of RDP."""
    rounds, clip, grain = 5, 1.0, 0.02
    found = made("skellam-sum", channel="secure-sum", epsilon=3.0, rounds=rounds, clip=clip, granularity=grain)
    c, d = clip / grain, 63
    square = math.floor(min(c * c + d / 4 + c + math.sqrt(d) / 2, (c + math.sqrt(d)) ** 2))
    l1, mu = math.floor(min(math.sqrt(d * square), square)), found.plan.z**2 * square
    orders = np.arange(2, 400)
    extra = np.minimum(((2 * orders - 1) * square + 6 * l1) / (4 * mu * mu), 3 * l1 / (2 * mu))
    curve = rounds * (orders * square / (2 * mu) + extra)
    epsilons = curve + np.log1p(-1 / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
    assert found.promise.epsilon == pytest.approx(epsilons.min(), rel=5e-3)
    assert found.promise.epsilon <= 3.0 and found.promise.relation == "add/remove"
    assert found.guarantee("client", 5, 5).epsilon > found.promise.epsilon  # who knows its own share
    assert price(found.method, found.plan)[-1].event.mu == pytest.approx(mu * 299 / 300)


@pytest.mark.parametrize(("looks", "honest"), [("server", 8), ("server+3", 5)])
def test_the_shares_of_the_honest_are_the_noise_that_is_priced(looks, honest):
    layer = nn.Linear(6000, 1, bias=False)
    zeros = [(torch.zeros(2, 6000), torch.zeros(2)) for _ in range(8)]
    found = job(
        layer, zeros, "squared_error", method="skellam-sum", channel="secure-sum", viewer=looks, granularity=0.01
    )
    played = play(found)
    left = played.sent["update"][:honest].sum(dim=0).double()  # what the viewer does not know
    event = price(found.method, found.plan)[0].event
    assert float(left.var()) == pytest.approx(event.mu, rel=0.08) and event.distance < 1e-12
    assert played.sent["update"].dtype == torch.int32 and played.sent.bits == 8 * 6000 * 32
    total = played.sent["update"].long().sum(dim=0)
    assert torch.equal(played.seen["update"][0], (total + 2**31) % 2**32 - 2**31)


def test_sums_that_need_more_than_the_modulus_and_clients_that_may_be_missing_are_refused():
    with pytest.raises(SpecError, match="binary digits"):
        made("skellam-sum", channel="secure-sum", clip=1e4, granularity=1e-5)
    for keys in ({"client_rate": 0.5}, {"dropout": "0.1"}, {"max_participations": 1}):
        with pytest.raises(SpecError, match="every client in every sum"):
            made("skellam-sum", channel="secure-sum", **keys)
    with pytest.raises(SpecError, match="does not go with channel = direct"):
        made("skellam-sum", channel="direct")


# --- two phases


def test_both_phases_are_priced():
    found = made("two-phases", epsilon=2.0, rounds=4)
    z = found.plan.z
    each = [r.mechanism.noise_multiplier for r in found.method.releases(found.plan)]
    assert sum(one**-2 for one in each) == pytest.approx(z**-2) and each[0] > each[1]
    server, public = price(found.method, found.plan)
    assert public.event.noise_multiplier == pytest.approx(z) and public.draw == "unit"
    assert found.promise.epsilon == pytest.approx(gdp.epsilon_of_mu(2 / z, DELTA), rel=1e-6)
    assert math.isinf(found.guarantee("server", 4, 4).epsilon) and server.viewer == "server"
    fixed = made("two-phases", client_sampling="fixed", client_rate=0.5)  # a replaced client: 2 C, but one norm
    half = [r.mechanism.noise_multiplier for r in fixed.method.releases(fixed.plan)]
    event = price(fixed.method, fixed.plan)[-1].event
    assert event.noise_multiplier == pytest.approx((half[0] ** -2 + (half[1] / 2) ** -2) ** -0.5)


def test_the_second_phase_is_clipped_to_what_the_first_released():
    found = made("two-phases", epsilon=200.0, learning_rate=0.5)
    clients, state = federation_of(found), loop.begin(found)
    ids = list(range(300))
    norms = clients.ask("measure", state, ids)["norm"][:, 0]
    played = play(found, state=state, federation=clients)
    clip = played.after.method.clip
    assert clip == pytest.approx(float(norms.mean()), rel=0.05) and clip != float(norms.mean())
    sent = played.sent["update"].double().norm(dim=1)
    assert float(sent.max()) <= clip and float(norms.max()) > clip  # and some were longer
    release = found.method.releases(found.plan, 0, played.after)[1]
    assert release.bound == clip


def test_two_phases_are_paid_once_recorded_once_and_resumed(tmp_path):
    class Killed(BaseException):
        pass

    keys = {"epsilon": 200.0, "averaging": "tail:0.5", "learning_rate": 0.02, "largest": 1.0}
    through = train(tmp_path / "a", "two-phases", **keys)
    counts = {"paid": 0, "trained": 0}

    def hook(point):
        counts[point] = counts.get(point, 0) + 1
        if counts["trained"] == 2 * 3 + 1:  # between the phases of the fourth round
            raise Killed

    faults.set_hook(hook)
    with pytest.raises(Killed):
        train(tmp_path / "b", "two-phases", checkpoint_seconds=0.0, **keys)
    faults.set_hook(None)
    assert counts["paid"] == 4
    again = sordino.train(linear(), MANY, test=TEST, resume=tmp_path / "b" / "it")
    assert same_weights(again.model, through.model) and again.guarantee.epsilon == through.guarantee.epsilon
    assert [r.clip for r in again.history] == [r.clip for r in through.history]
    assert len({r.clip for r in through.history}) == 5 and all(r.clip < 1 for r in through.history)  # of the round
    assert charges(tmp_path / "b" / "it") == charges(tmp_path / "a" / "it") == list(range(5))
    assert {o.bytes_up for o in through.private.history} == {300 * 4 * (1 + 63)}  # a norm, and then an update


def test_the_loop_and_the_helper_play_the_same_round(tmp_path):
    """So that tests of single rounds speak of what is run."""
    found = made("two-phases", **LEARN["two-phases"] | {"rounds": 1})
    trained = train(tmp_path, "two-phases", rounds=1)
    rng = found.rng
    played = play(found, federation=federation_of(found, rng=rng), rng=rng)
    assert torch.equal(found.model.layout.read(trained.model), played.after.params)


def test_answers_that_are_late_arrive_in_the_phase_they_belong_to():
    found, ids = made("two-phases", dropout="0.2", late=0.4), list(range(300))
    state, in_time = loop.begin(found), replace(found.plan, stragglers=Stragglers())
    exact = federation_of(found, plan=in_time).ask("measure", state, ids)["norm"]
    clients, later = federation_of(found), replace(state, params=0.9 * state.params, round=1)
    first = {phase: clients.ask(phase, state, ids) for phase in found.method.phases}
    waiting = {phase: clients.store.clients(f"late {phase}") for phase in found.method.phases}
    second = {phase: clients.ask(phase, later, ids) for phase in found.method.phases}
    assert waiting["measure"] == waiting["train"] and len(waiting["train"]) > 50
    for sent in (first, second):
        assert sent["measure"].ids.tolist() == sent["train"].ids.tolist()
        assert {name: set(message.fields) for name, message in sent.items()} == {
            "measure": {"norm"},
            "train": {"update"},
        }
    assert not set(waiting["train"]) & set(first["train"].ids.tolist())
    old = [k for k, i in enumerate(second["measure"].ids) if torch.equal(second["measure"]["norm"][k], exact[i])]
    arrived = set(second["measure"].ids[old].tolist())
    assert arrived and arrived <= set(waiting["measure"])  # what they had to say in the first round
    rows = second["train"]["update"][old].double().norm(dim=1, keepdim=True)
    assert torch.allclose(rows, exact[second["train"].ids[old]].double().clamp_max(10.0), rtol=1e-4)


def test_a_phase_that_would_change_the_price_is_refused(tmp_path):
    two = plugin.load("methods", "two-phases")

    @dataclass(frozen=True)
    class Louder(two):
        def releases(self, plan, round=0, state=None):
            norm, update = super().releases(plan, round, state)
            less = state is not None and state.method is not None and state.method.clip < self.largest
            return norm, replace(update, mechanism=Noise(0.5 * plan.z)) if less else update

    found = replace(made("two-phases"), method=Louder())
    found = replace(found, federation=federation_of(found))
    with pytest.raises(RunError, match="after the phase measure, the cost of the round differs from what was paid"):
        loop._round(found, found.method, loop.begin(found), list(range(300)), found.rng.at("round", 0))


# --- a printed form


def test_a_printed_form_is_a_claim_beside_an_infinite_price():
    found = made("printed-form", epsilon=2.0)
    ratio = math.sqrt(2 * math.log(1.25 / DELTA)) / 2.0
    claim = found.method.claim(found.plan)
    assert (claim.epsilon, claim.scope, claim.unit) == (2.0, "round", "client")
    assert math.isinf(found.promise.epsilon) and claim.why_not in found.promise.sentence()
    exact = made("none")
    updates, noisy = (play(m).sent["update"].double() for m in (exact, found))
    scale = ((noisy - updates) / updates.norm(dim=1, keepdim=True)).std()
    assert float(scale) == pytest.approx(ratio, rel=0.03)
    assert not isinstance(price(found.method, found.plan)[0].event, GaussianEvent)
