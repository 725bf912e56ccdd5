"""What a channel hides is priced once: the price is held against the noise that really is in what a viewer sees.

Clients whose updates are zero send noise alone. What a viewer knows is taken off (its own noise, that of colluders),
the rest is measured, and no price may assume more noise than that, for every channel, viewer and kind of method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from sordino.channels.direct import Direct
from sordino.channels.secure_sum import SecureSum
from sordino.channels.shuffler import Shuffler
from sordino.contract import pricing
from sordino.contract.method import Own, Plan, Release, Site
from sordino.contract.plan import Exact
from sordino.core import plugin
from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.methods.nbafl import NbAFL
from sordino.privacy import price
from sordino.privacy.crowd import Crowd
from sordino.privacy.events import Event, GaussianEvent
from sordino.privacy.samplers import Poisson
from sordino.privacy.trust import Viewer, viewer
from sordino.runs import build, loop
from support.methods import play
from support.problems import job

WIDE, SIZES, CLIP, Z = 20_000, (1, 1, 2, 2, 3, 3, 4, 8), 0.7, 1.5
CLIENTS, WEIGHTS = len(SIZES), np.array(SIZES) / np.mean(SIZES)
SURE = 0.03  # six standard deviations of a measured deviation
VIEWERS = ("server", "server+3", "public", "client")


@dataclass(frozen=True)
class Noise(NbAFL):
    """Client-level Gaussian noise and nothing else; it may refuse to say that noise adds up, and weigh by records."""

    adds_up: bool = True
    weighs: bool = False

    @property
    def by_records(self) -> bool:  # type: ignore[override]
        return self.weighs

    def linear(self, plan: Plan) -> bool:
        return self.adds_up

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        return tuple(replace(r, additive=not self.weighs) for r in super().releases(plan, round, state))

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        rows = site.out["update"](state.params.new_zeros(len(site.data.sizes), WIDE))
        weight = torch.tensor(site.data.sizes) / site.plan.mean_client
        return Message({"update": rows}, weight if self.weighs else None), site.own


@pytest.fixture(scope="module")
def still() -> build.Job:
    layer = nn.Linear(WIDE, 1, bias=False)
    zeros = [(torch.zeros(n, WIDE), torch.zeros(n)) for n in SIZES]
    made = job(layer, zeros, "squared_error", method="nbafl", clip=CLIP)
    return replace(made, plan=replace(made.plan, noise_multiplier=Z))


def of(still: build.Job, channel: Any, looks: str, everyone: bool, **keys: Any) -> build.Job:
    draw = Poisson(1.0 if everyone else 0.5)
    plan = replace(still.plan, channel=channel, sampler=draw, colluders=viewer(looks).colluders)
    return replace(still, method=Noise(CLIP, **keys), plan=plan)


def exact(made: build.Job) -> build.Job:
    return replace(made, plan=replace(made.plan, exact=Exact(None, 1)))


def unknown(made: build.Job, looks: Viewer) -> float:
    """Return the deviation of the noise that a viewer does not know, over what one client can move.

    The client in question is the heaviest; those who look, or collude, are the next heaviest. Where clients may be
    missing all others are, since a draw may come out so."""
    here = list(range(CLIENTS)) if made.plan.everyone else [CLIENTS - 1]
    weights = WEIGHTS[here] if made.method.by_records else np.ones(len(here))
    state = loop.begin(made)
    played = play(made, here, state)
    rows = played.sent.weighed()["update"]
    if not rows.is_floating_point():  # whole numbers, in steps of a lattice
        rows = pricing.declared(made.method, made.plan)[0].mechanism.floats(rows, CLIP, torch.float64)
    if looks.kind == "server" and made.plan.channel.shows_rows:  # a row weighs as much as what is asked about
        return min(float(row.double().std() / w) for row, w in zip(rows, weights, strict=True)) / CLIP
    if looks.kind == "server":
        seen = played.seen["update"][0].double()
    else:  # the models alone, which move by the mean
        seen = (played.after.params - state.params).double() * made.plan.expected_answers(0)
    rows, (target, *others) = rows.double(), np.argsort(weights)[::-1]
    taken = others[: looks.colluders or int(looks.kind == "client")]
    return float((seen - rows[taken].sum(dim=0)).std()) / (CLIP * weights[target])


def priced(made: build.Job, looks: str) -> float:
    event = price.cost_to(looks, pricing.costs(made.method, made.plan)).event
    assert isinstance(event, GaussianEvent)
    return event.noise_multiplier


def holds(made: build.Job, looks: str) -> bool:
    return priced(made, looks) <= unknown(made, viewer(looks)) * (1 + SURE)


@pytest.mark.parametrize("looks", VIEWERS)
@pytest.mark.parametrize("weighs", [False, True])
@pytest.mark.parametrize("adds_up", [True, False])
@pytest.mark.parametrize("everyone", [True, False])
@pytest.mark.parametrize("channel", plugin.available("channels"))
def test_no_price_assumes_more_noise_than_a_viewer_meets(still, channel, everyone, adds_up, weighs, looks):
    made = of(still, plugin.load("channels", channel)(), looks, everyone, adds_up=adds_up, weighs=weighs)
    if weighs and channel == "shuffler":
        with pytest.raises(RunError, match="weights tell clients apart"):
            unknown(made, viewer(looks))
        return
    assert holds(made, looks)


@pytest.mark.parametrize("looks", VIEWERS)
@pytest.mark.parametrize("channel", plugin.available("channels"))
def test_exact_noise_is_there_as_it_is_priced(still, channel, looks):
    made = exact(of(still, plugin.load("channels", channel)(), looks, everyone=True))
    assert not play(made).sent["update"].is_floating_point() and holds(made, looks)


@pytest.mark.parametrize("how", [lambda made: made, lambda made: exact(made)], ids=["float", "exact"])
@pytest.mark.parametrize("looks", VIEWERS)
def test_the_measure_is_sharp(still, looks, how):
    """Where all rows weigh the same, hardly less noise is priced than there is."""
    made = how(of(still, SecureSum(), looks, everyone=True))
    assert priced(made, looks) >= unknown(made, viewer(looks)) * (1 - SURE)


@dataclass(frozen=True)
class Twice(SecureSum):
    """Splits the noise among the clients, and then credits the sum with the noise of all of them."""

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        return event.summed(crowd.honest) if linear else event


@dataclass(frozen=True)
class Shown(Direct):
    """Splits the noise among the clients although every row is seen."""

    def split(self, crowd: Crowd) -> int:
        return crowd.honest


@dataclass(frozen=True)
class Forgetful(SecureSum):
    """Forgets that colluders, or the client that looks, know their shares; and that some may be missing."""

    name: ClassVar[str] = "secure-sum"

    def split(self, crowd: Crowd) -> int:
        return crowd.population

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        return event


@dataclass(frozen=True)
class Summed(Shuffler):
    """Credits rows that the server sees one by one with the noise of all of them."""

    def cost(self, event: Event, viewer: Viewer, crowd: Crowd, linear: bool = False, more: float = 0.0) -> Event:
        return event.summed(crowd.sure)


@pytest.mark.parametrize(
    ("channel", "looks", "everyone"),
    [
        (Twice(), "server", True),
        (Twice(), "public", True),
        (Twice(), "client", True),
        (Shown(), "server", True),
        (Forgetful(), "server+3", True),
        (Forgetful(), "client", True),
        (Forgetful(), "server", False),
        (Summed(), "server", True),
    ],
    ids=str,
)
def test_the_law_catches_a_channel_that_credits_noise_that_is_not_there(still, channel, looks, everyone):
    assert not holds(of(still, channel, looks, everyone), looks)


def test_the_law_catches_a_sum_that_forgets_how_much_a_row_weighs(still):
    for channel, fine in ((SecureSum(), True), (Forgetful(), False)):
        assert holds(of(still, channel, "server", everyone=True, weighs=True), "server") == fine


def test_a_double_credit_would_be_a_large_lie(still):
    """Both credits together, noise split and summed, take an epsilon far below the true one."""
    honest, lie = (of(still, channel, "server", everyone=True) for channel in (SecureSum(), Twice()))
    true, false = (m.guarantee("server", 3, 3).epsilon for m in (honest, lie))
    assert false < 0.4 * true


def test_weights_other_than_those_that_were_priced_are_refused(still):
    @dataclass(frozen=True)
    class Uneven(Noise):
        def train(self, state: State, site: Site) -> tuple[Message, Own]:
            message, own = super().train(state, site)
            weight = torch.ones(len(message))
            weight[0] = 5.0
            return replace(message, weight=weight), own

    for weighs, why in ((False, "unchanged and without weights"), (True, "priced for rows that count")):
        made = replace(of(still, SecureSum(), "server", everyone=True), method=Uneven(CLIP, weighs=weighs))
        with pytest.raises(RunError, match=why):
            play(made)


def test_the_shares_of_the_noise_are_what_the_outlets_add(still):
    made = of(still, SecureSum(), "server+3", everyone=True)
    rows = play(made, rng=Stream.research(5)).sent["update"].double()
    assert float(rows.std()) == pytest.approx(Z * CLIP / 5**0.5, rel=0.01)  # eight clients, three of them colluders
