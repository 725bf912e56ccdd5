"""What channels are worth: noise that is shared, reports that are mixed, and what a viewer knows of either."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sordino.channels.direct import Direct
from sordino.channels.secure_sum import SecureSum
from sordino.channels.shuffler import Shuffler
from sordino.contract.presence import Stragglers
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.privacy import derive, shuffle, tightest
from sordino.privacy.algebra import scaled
from sordino.privacy.clip import Bounded
from sordino.privacy.crowd import Crowd
from sordino.privacy.events import Composed, GaussianEvent, NonPrivate, Pure, Repeated
from sordino.privacy.mechanisms import gaussian
from sordino.privacy.mechanisms.binomial import BinomialEvent
from sordino.privacy.mechanisms.laplace import LaplaceEvent
from sordino.privacy.mechanisms.randomized_response import RandomizedResponse, RandomizedResponseEvent
from sordino.privacy.mechanisms.skellam import SkellamEvent
from sordino.privacy.release import Release, Use
from sordino.privacy.samplers import FixedSizeSampler, Poisson
from sordino.privacy.trust import viewer
from support import integer_laws
from support.problems import job, plan

HUNDRED = Crowd(100, everyone=True, sure=100, single=True)
RR = RandomizedResponseEvent(1.0)


def everyone(population: int, colluders: int = 0) -> Crowd:
    return Crowd(population, True, colluders, sure=population, single=True)


def seen(channel, event, looks, crowd, linear=True):
    found = viewer(looks)
    return channel.cost(event, found, replace(crowd, colluders=found.colluders), linear)


# --- the secure sum


def test_a_secure_sum_hides_a_client_behind_the_noise_of_the_honest_ones():
    """A hundred shares of 0.5 are the noise of 5.0 that is priced; colluders know theirs, so the others add more."""
    noise, zeros = gaussian.Gaussian(5.0), Bounded(torch.zeros(2, 40_000), 1.0)
    assert seen(Direct(), GaussianEvent(0.5), "server", HUNDRED) == GaussianEvent(0.5)
    for looks, share in (("server", 0.5), ("server+36", 5 / 8), ("server+99", 5.0)):  # one's own noise stays
        split = SecureSum().split(replace(HUNDRED, colluders=viewer(looks).colluders))
        rows = noise.apply(zeros, Stream.research(3).rows([0, 1]), Use(split=split))
        assert float(rows.std()) == pytest.approx(share, rel=0.02)
        assert seen(SecureSum(), noise.event(split), looks, HUNDRED) == GaussianEvent(5.0)


def test_where_clients_may_be_missing_each_adds_all_of_the_noise():
    """30 of 100 that drop out of shares sized for all would leave too little."""
    gone = replace(HUNDRED, everyone=False)
    assert SecureSum().split(gone) == 1 and seen(SecureSum(), GaussianEvent(2.0), "server", gone) == GaussianEvent(2.0)


def test_another_client_knows_its_share_and_colluders_know_theirs():
    found = seen(SecureSum(), GaussianEvent(1.0), "client", HUNDRED)
    assert found.noise_multiplier == pytest.approx(math.sqrt(99 / 100))
    assert seen(SecureSum(), GaussianEvent(1.0), "client", HUNDRED, linear=False) == GaussianEvent(
        1.0
    )  # noise is not split
    assert SecureSum().cost(GaussianEvent(1.0), viewer("client"), everyone(100, 36), True) == GaussianEvent(
        1.0
    )  # 99 of 64


def test_a_row_that_weighs_more_moves_the_sum_by_more():
    heavy = replace(HUNDRED, heaviest=4.0)
    assert seen(SecureSum(), GaussianEvent(1.0), "server", heavy) == GaussianEvent(0.25)
    assert seen(SecureSum(), GaussianEvent(1.0), "client", heavy).noise_multiplier == pytest.approx(math.sqrt(84) / 40)
    # the colluders may be the heavy ones: what the protected client adds itself is all that is sure
    assert seen(SecureSum(), GaussianEvent(1.0), "server+19", heavy).noise_multiplier == pytest.approx(1 / 9)
    records = replace(heavy, single=False)  # rows weigh by records, of which each counts alike
    assert seen(SecureSum(), GaussianEvent(1.0), "server", records) == GaussianEvent(1.0)


def test_integer_noises_that_add_up_to_their_like():
    """Checked against the laws themselves: the sum of n noises, convolved, is the noise that is priced."""
    share = SkellamEvent(3.0, 1.0, 1.0)
    assert share.summed(4) == SkellamEvent(12.0, 1.0, 1.0)
    assert scaled(share, 2.0) == share.summed(4)
    _, one = integer_laws.skellam(3.0)
    four = np.convolve(np.convolve(one, one), np.convolve(one, one))
    k, whole = integer_laws.skellam(12.0)
    middle = len(four) // 2
    np.testing.assert_allclose(four[middle - 30 : middle + 31], whole[np.abs(k) <= 30], rtol=1e-9)
    coins = BinomialEvent(40, 1, 1.0, 1.0, 1, 1e-6)
    assert coins.summed(5) == BinomialEvent(200, 1, 1.0, 1.0, 1, 1e-6)


def test_noise_that_does_not_add_up_to_its_like_gains_nothing_from_a_sum():
    assert Pure(1.0).summed(100) == Pure(1.0)
    assert seen(SecureSum(), Pure(1.0), "server", HUNDRED) == Pure(1.0)
    known = seen(SecureSum(), Pure(1.0), "client", HUNDRED)  # of which a client may know any part
    assert isinstance(known, NonPrivate) and "knows a part of the noise" in known.reason


def test_whole_numbers_are_added_modulo_the_bits_of_the_channel():
    rows = torch.tensor([[100, -7], [100, 5], [100, -2]])
    channel = SecureSum(bits=8)
    sent = channel.seal(Message({"update": rows, "yes": torch.tensor([True, True, False])}), (0, 1, 2))
    arrived = channel.carry(sent, Stream.research(0))
    assert sent.bits == 8 * 9  # eight bits a number, whatever the numbers were held in
    assert arrived["update"].tolist() == [[300 - 256, -4]] and arrived["yes"].tolist() == [2]
    assert arrived.ids is None and arrived.weight.tolist() == [3.0]
    wide = SecureSum(bits=62)
    huge = torch.full((5, 1), 2**61 - 1)
    total = wide.carry(wide.seal(Message({"update": huge}), range(5)), Stream.research(0))
    assert int(total["update"]) == (5 * (2**61 - 1) + 2**61) % 2**62 - 2**61
    with pytest.raises(SpecError, match="at most 62 bits"):
        SecureSum(bits=63)


def test_sums_of_weighed_rows_are_weighed_once():
    rows, weight = torch.tensor([[1.0], [10.0]]), torch.tensor([3.0, 0.5])
    total = SecureSum().carry(SecureSum().seal(Message({"update": rows}, weight), (0, 1)), Stream.research(0))
    assert total["update"].tolist() == [[8.0]] and total.weight.tolist() == [3.5]
    assert total.total("update")["update"].tolist() == [[8.0]]


# --- the shuffler


def test_a_shuffler_amplifies_pure_reports_only():
    thousand = everyone(1000)
    assert seen(Shuffler(), RR, "server+100", thousand) == shuffle.ShuffledEvent(1.0, 900)
    assert seen(Shuffler(), RR, "server", thousand) == shuffle.ShuffledEvent(1.0, 1000)
    assert seen(Shuffler(), RR, "public", thousand) == shuffle.ShuffledEvent(1.0, 1000)
    assert seen(Shuffler(), RR, "client", thousand) == shuffle.ShuffledEvent(1.0, 999)  # it knows its own report
    assert seen(Shuffler(), GaussianEvent(1.0), "server", thousand) == GaussianEvent(1.0)
    both = Composed((RR, GaussianEvent(3.0)))
    assert seen(Shuffler(), both, "server", thousand) == both  # a message of which one part has a delta


def test_mixed_reports_cost_what_independent_code_says():
    """The clones' pair summed with scipy alone: one round; and 80 rounds of the same clients, by an FFT over losses
    that were all rounded down, or all up, to multiples of 1e-5."""
    mixed = seen(Shuffler(), RandomizedResponseEvent(2.0), "server", everyone(10_000))
    assert tightest.epsilon(mixed, 1e-6) == pytest.approx(0.1550452425, rel=1e-3)
    assert 1.4277925092 < tightest.epsilon(Repeated(mixed, 80), 1e-5) < 1.4285893823


def test_the_whole_message_is_what_is_mixed():
    """Rows stay together, so their levels add up before they are amplified; never to more than they cost unmixed."""
    three = Composed((RR, Repeated(RR, 2), Composed(())))
    assert seen(Shuffler(), three, "server", everyone(100_000)) == shuffle.ShuffledEvent(3.0, 100_000)
    many = Repeated(RandomizedResponseEvent(0.05), 400)  # 20 in all, and far less at a delta
    assert seen(Shuffler(), many, "server", everyone(1000)) == many


def test_units_that_are_a_part_of_a_client_are_not_amplified():
    """Others' reports need not look like those of a client one of whose records changed."""
    thousand = replace(everyone(1000), single=False)
    assert seen(Shuffler(), RR, "server", thousand) == RR
    release = Release("bit", _Flip(1.0), "record", 1.0)
    mixed = shuffle.ShuffledEvent(1.0, 1000)
    for unit, single, event in (("client", False, mixed), ("record", True, mixed), ("record", False, RR)):
        setting = derive.Setting(Shuffler(), replace(thousand, single=single))
        assert derive.costs([replace(release, unit=unit)], setting)[0].event == event


class _Flip:
    def __init__(self, epsilon):
        self.epsilon = epsilon

    def event(self, split=1):
        return RandomizedResponse(self.epsilon).event()


def test_what_is_said_of_added_clients_is_not_amplified():
    """The clones hide a report that is replaced by another; a level for a client that is left out says less."""
    assert seen(Shuffler(), LaplaceEvent(1.0), "server", everyone(1000)) == LaplaceEvent(1.0)


def test_phases_are_mixed_one_by_one():
    """A new order in every phase, so each is amplified by itself; two fields of one row are one report."""
    setting = derive.Setting(Shuffler(), everyone(1000))
    first, second = (Release(name, _Flip(1.0), "client", 1.0, phase=name) for name in ("ask", "train"))
    one = shuffle.ShuffledEvent(1.0, 1000)
    assert derive.costs([first, second], setting)[0].event == Composed((one, one))
    together = derive.costs([first, replace(second, phase="ask")], setting)[0].event
    assert together == shuffle.ShuffledEvent(2.0, 1000)
    assert tightest.epsilon(together, 1e-6) > tightest.epsilon(Composed((one, one)), 1e-6)


def test_a_price_for_the_whole_run_is_not_amplified():
    """What single reports promise is then chosen on the way. Pure noise adds up by no squares, so it has no total."""
    release = Release("bit", gaussian.Gaussian(3.0), "client", 1.0, total=gaussian.Gaussian(1.0))
    found = derive.run_costs([release], derive.Setting(Shuffler(), everyone(1000)))
    assert found[0].event == GaussianEvent(1.0)
    with pytest.raises(SpecError, match="adds up by squares"):
        derive.run_costs([replace(release, mechanism=_Flip(0.1), total=_Flip(1.0))], derive.Setting(Shuffler()))


# --- who is sure to report


SURE = [
    ({}, 8),
    ({"sampler": FixedSizeSampler(5)}, 5),
    ({"sampler": FixedSizeSampler(12)}, 8),
    ({"sampler": Poisson(0.9)}, 1),
    ({"stragglers": Stragglers(dropout=(0.1, 0.1))}, 1),
    ({"stragglers": Stragglers(late=0.1)}, 1),
    ({"stragglers": Stragglers(slow=0.5)}, 8),  # they do less, and answer
    ({"stragglers": Stragglers(joining=(0.5, 1))}, 1),
    ({"max_participations": 2}, 1),
    ({"capped": True}, 1),
    ({"sampler": FixedSizeSampler(5), "max_participations": 2}, 1),
    ({"sampler": FixedSizeSampler(5), "stragglers": Stragglers(dropout=(0.0, 0.1))}, 1),
]


@pytest.mark.parametrize(("keys", "sure"), SURE, ids=str)
def test_who_is_sure_to_report(keys, sure):
    assert plan(**keys).crowd.sure == sure


def test_a_client_of_one_record_is_that_record():
    assert plan(sizes=(1,), mean_client=1.0).crowd.single and not plan().crowd.single
    assert not plan(sizes=(1,), mean_client=1.0, clients_per_user=2).crowd.single
    assert not plan(sizes=(0, 1), mean_client=0.5).crowd.single


def test_impossible_crowds_are_refused():
    with pytest.raises(SpecError, match="at least one must be honest"):
        job(method="nbafl", channel="secure-sum", viewer="server+8")
    with pytest.raises(SpecError, match="unknown channel 'pigeon'"):
        job(method="nbafl", channel="pigeon")
    with pytest.raises(SpecError, match="does not go with channel = shuffler"):
        job(method="nbafl", channel="shuffler")
