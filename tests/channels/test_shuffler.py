"""The shuffler: the server sees every row, in no order and without a sender; what tells clients apart is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import sordino
from sordino.channels.shuffler import Shuffler
from sordino.core import plugin
from sordino.core.errors import RunError, SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.methods.nbafl import NbAFL
from sordino.privacy import shuffle, tightest
from sordino.privacy.events import Repeated
from sordino.privacy.release import Release, Unproven
from sordino.runs import loop
from support.methods import federation_of, play
from support.problems import federation, job, linear, registry

RNG = Stream.research(2)
EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


def rows(n: int = 500, **keys) -> Message:
    fields = {"place": torch.arange(n), "bit": torch.arange(n) % 3 == 0}
    return Message(fields, ids=np.arange(n), released=frozenset(fields), **keys)


def test_rows_keep_together_and_lose_their_senders():
    channel = Shuffler()
    arrived = channel.carry(channel.seal(rows(), range(500)), RNG)
    assert arrived.ids is None and arrived.weight is None
    place = arrived["place"]
    assert torch.equal(place.sort().values, torch.arange(500)) and not torch.equal(place, torch.arange(500))
    assert torch.equal(arrived["bit"], place % 3 == 0)
    others = [channel.carry(channel.seal(rows(), range(500)), RNG.at(k))["place"] for k in range(20)]
    assert all(not torch.equal(place, other) for other in others)


def test_every_place_is_as_likely():
    """The first row of four lands anywhere, a quarter of the times each."""
    few = Shuffler().seal(rows(4), range(4))
    lands = [int((Shuffler().carry(few, RNG.at(k))["place"] == 0).nonzero()) for k in range(4000)]
    assert np.abs(np.bincount(lands, minlength=4) - 1000).max() < 5 * np.sqrt(4000 * 3 / 16)


def test_what_tells_clients_apart_is_refused():
    channel = Shuffler()
    with pytest.raises(RunError, match="weights tell clients apart"):
        channel.seal(rows(3, weight=torch.tensor([1.0, 2.0, 1.0])), range(3))
    assert channel.seal(rows(3, weight=torch.ones(3)), range(3)).weight is None
    with pytest.raises(RunError, match="the field size is not what an outlet returned"):
        channel.seal(replace(rows(3), fields=rows(3).fields | {"size": torch.arange(3)}), range(3))


class Remarks(NbAFL):
    """Sends the noisy update, and what its `remark` makes of it and of the clients."""

    def linear(self, plan):
        return False

    def releases(self, plan, round=0, state=None):
        return tuple(replace(r, additive=False) for r in super().releases(plan, round, state))

    def train(self, state, site):
        message, own = super().train(state, site)
        return self.remark(message, site), own


def sealed(remark, **keys):
    made = job(linear(), federation((4, 8, 12)), method="nbafl")
    method = type("Here", (Remarks,), {"remark": staticmethod(remark)})()
    made = replace(made, method=method, plan=replace(made.plan, channel=Shuffler(), **keys))
    return federation_of(made).ask("train", loop.begin(made), [0, 1, 2])


def test_only_what_outlets_returned_may_leave():
    assert sealed(lambda message, site: message).ids is None
    for field in (
        lambda message, site: torch.tensor(site.data.sizes),  # public, and each client's own
        lambda message, site: torch.from_numpy(site.rng.ids),
        lambda message, site: message["update"] + torch.tensor(site.data.sizes)[:, None],  # noisy, and yet its own
        lambda message, site: message["update"].clone(),  # nothing says that it is not
    ):
        with pytest.raises(RunError, match="the field more is not what an outlet returned"):
            sealed(lambda message, site, f=field: replace(message, fields=message.fields | {"more": f(message, site)}))
    with pytest.raises(RunError, match="the field update is not what an outlet returned"):
        sealed(lambda message, site: replace(message, fields={"update": message["update"].add_(site.data.sizes[0])}))
    with pytest.raises(RunError, match="weights tell clients apart"):
        sealed(lambda message, site: replace(message, weight=torch.tensor([1.0, 2.0, 3.0])))


def test_noise_of_a_clients_own_strength_tells_it_apart():
    with pytest.raises(RunError, match="the same for everyone"):
        sealed(lambda message, site: message, multipliers=(3.0, 4.0, 5.0), noise_multiplier=3.0)


def test_chunks_of_a_cohort_are_sealed_as_one():
    made = job(linear(), federation((4,) * 6), method="nbafl")
    made = replace(made, plan=replace(made.plan, channel=Shuffler()))
    small = federation_of(made, memory_gb=2 * 63 * 24 / 2**30)  # two clients at a time
    message = small.ask("train", loop.begin(made), range(6))
    assert len(message) == 6 and message.released == {"update"}


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, str(EXAMPLES))


def test_with_stragglers_reports_are_charged_unmixed(examples):
    """Nobody else is sure to report then; late reports arrive, and are as private as any by themselves."""
    many = federation((2,) * 60)
    made = job(linear(), many, method="sign-bits", channel="shuffler", dropout="0.2", late=0.3)
    assert made.plan.crowd.sure == 1
    alone = Repeated(made.method.releases(made.plan)[1].mechanism.event(), 3)
    assert made.promise.epsilon == pytest.approx(tightest.epsilon(alone, 1e-5), rel=1e-3)
    clients, state = federation_of(made), loop.begin(made)
    first = play(made, state=state, federation=clients)
    second = play(made, state=first.after, federation=clients)
    late = clients.store.clients("late train")
    assert 0 < len(first.seen) < 60 and late and second.seen.ids is None
    with pytest.raises(SpecError, match="does not go with these stragglers: weights tell clients apart"):
        job(linear(), many, method="sign-bits", channel="shuffler", dropout="0.1-0.4")


def test_a_cohort_of_a_fixed_size_hides_its_members_in_one_another(examples):
    many = federation((2,) * 60)
    made = job(linear(), many, method="sign-bits", channel="shuffler", client_sampling="fixed", client_rate=0.5)
    mixed = shuffle.ShuffledEvent(1 / made.plan.z, 30)
    assert made.promise.epsilon == pytest.approx(tightest.epsilon(Repeated(mixed, 3), 1e-5), rel=1e-3)
    assert "every message, but not whose it is" in made.promise.sentence()


class Names(NbAFL):
    """Says in each of two phases who everyone is; of no privacy whatever, so that the orders can be compared."""

    phases = ("ask", "train")

    def releases(self, plan, round=0, state=None):
        return tuple(Release(phase, Unproven("names"), "client", phase=phase) for phase in self.phases)

    def train(self, state, site):
        return Message({site.phase: site.out[site.phase](torch.from_numpy(site.rng.ids)[:, None].float())}), site.own

    def between(self, phase, state, seen, plan):
        return replace(state, method=seen)


def test_every_phase_and_round_has_an_order_of_its_own():
    """One order for two phases would tie a client's reports together."""
    made = job(linear(), federation((2,) * 40), method="nbafl")
    made = replace(made, method=Names(), plan=replace(made.plan, channel=Shuffler()))
    made, orders = replace(made, federation=federation_of(made)), []
    for number in range(2):
        state = replace(loop.begin(made), round=number)
        state, seen, _ = loop._round(made, made.method, state, list(range(40)), made.rng.at("round", number))
        orders += [state.method["ask"], seen["train"]]
    assert all(order[:, 0].sort().values.tolist() == list(range(40)) for order in orders)
    assert len({tuple(order[:, 0].tolist()) for order in orders}) == 4


def test_a_remark_that_tells_clients_apart_is_refused_before_anything_is_paid(tmp_path, monkeypatch):
    """A public number of one's own, sent beside the report: fine where senders are known, not behind a shuffler."""
    source = (EXAMPLES / "methods" / "sign_bits.py").read_text()
    (tmp_path / "methods").mkdir()
    remark = '"bit": bit, "size": torch.tensor(site.data.sizes)}'
    (tmp_path / "methods" / "sized_bits.py").write_text(source.replace('"bit": bit}', remark))
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path))
    keys = {"method": "sized-bits", "rounds": 1, "mode": "research", "device": "cpu", "out": str(tmp_path / "out")}
    with pytest.raises(RunError, match="the field size is not what an outlet returned"):
        sordino.train(linear(), federation((2, 3, 4)), channel="shuffler", **keys)
    assert not registry().exists()
    sordino.train(linear(), federation((2, 3, 4)), **keys)
    assert registry().exists()
