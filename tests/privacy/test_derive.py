"""From declared releases to costs: every kind of method against a price that is written by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from sordino.channels.direct import Direct
from sordino.channels.secure_sum import SecureSum
from sordino.core.errors import SpecError
from sordino.privacy import derive, events, price
from sordino.privacy.algebra import parts
from sordino.privacy.crowd import Crowd
from sordino.privacy.derive import TRUSTED, Setting, costs, run_costs
from sordino.privacy.events import Composed, Cost, Event, FixedSize, NonPrivate, Parallel, Repeated, Sampled, Visible
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.laplace import LaplaceEvent
from sordino.privacy.mechanisms.randomized_response import RandomizedResponseEvent
from sordino.privacy.mechanisms.tree import Tree
from sordino.privacy.release import Draw, Release, Unproven
from sordino.privacy.samplers import FixedSizeSampler as FixedCohort
from sordino.privacy.samplers import Poisson

Z = 2.0
G = events.GaussianEvent  # the event; the mechanism has the long name
DIRECT = Setting(Direct(), Crowd(8))
ALL = Crowd(8, everyone=True, sure=8)  # every client answers in every round


@dataclass(frozen=True)
class Of:
    """A mechanism with any event."""

    is_: Event

    def event(self, split: int = 1) -> Event:
        return self.is_


def gradient(**keys):
    return replace(Release("gradient", Gaussian(Z), "record", 1.0, times=3), **keys)


def update(**keys):
    return replace(Release("update", Gaussian(Z), "client", 0.5), **keys)


# --- noise inside the clients, of records


def test_poisson_batches():
    (cost,) = costs([gradient(draw=Draw(rate=0.1))], DIRECT)
    assert cost == Cost("record", "add/remove", "server", Repeated(Sampled(G(Z), 0.1), 3), draw="inside")


def test_full_batches_and_a_single_step():
    assert costs([gradient()], DIRECT)[0].event == Repeated(G(Z), 3)
    assert costs([gradient(times=1)], DIRECT)[0].event == G(Z)
    assert costs([gradient(times=1, draw=Draw(rate=0.1))], DIRECT)[0].event == Sampled(G(Z), 0.1)


def test_batches_of_a_fixed_size_are_priced_under_replace_with_twice_the_bound():
    (cost,) = costs([gradient(draw=Draw(size=3, population=12))], DIRECT)
    assert cost == Cost("record", "replace", "server", Repeated(FixedSize(G(Z / 2), 3, 12), 3))
    (dear,) = costs(
        [gradient(draw=Draw(size=12, population=12))], DIRECT
    )  # of the dearest client: others leave some out
    assert dear.relation == "replace" and parts(dear.event) == {G(Z / 2): 3}


@pytest.mark.parametrize("fixed", [False, True])
def test_losses_of_one_sign_are_not_doubled_when_a_record_is_replaced(fixed):
    losses = Release("losses", Gaussian(5.0), "record", 3.0, swing=1)
    draw = Draw(size=3, population=12) if fixed else Draw(rate=0.25)
    (cost,) = costs([gradient(draw=draw), losses], DIRECT)
    step = FixedSize(G(Z / 2), 3, 12) if fixed else Sampled(G(Z), 0.25)
    assert cost.event == Composed((Repeated(step, 3), G(5.0)))
    assert cost.relation == ("replace" if fixed else "add/remove")
    (signed,) = costs([gradient(draw=draw), replace(losses, swing=2)], DIRECT)
    assert (signed == cost) != fixed


def test_one_release_under_replace_makes_all_of_them():
    (cost,) = costs([gradient(), gradient(name="other", times=1, relation="replace")], DIRECT)
    assert cost == Cost("record", "replace", "server", Composed((Repeated(G(Z / 2), 3), G(Z / 2))))


def test_reports_that_are_always_sent_are_about_replaced_units_already():
    report = Release("answer", Of(RandomizedResponseEvent(1.0)), "client", 1.0)
    (cost,) = costs([report, update()], DIRECT)
    assert (cost.relation, cost.event) == ("replace", Composed((RandomizedResponseEvent(1.0), G(Z / 2))))


def test_the_draw_of_a_cohort_does_not_move_records():
    fixed = replace(DIRECT, sampler=FixedCohort(4))
    assert costs([gradient()], fixed) == costs([gradient()], DIRECT)


# --- users


@pytest.mark.parametrize("copies", [1, 3])
def test_users_pay_in_each_of_their_clients_where_these_add_the_noise(copies):
    (cost,) = costs([gradient(unit="user", draw=Draw(rate=0.5))], replace(DIRECT, copies=copies))
    assert cost == Cost("user", "add/remove", "server", Repeated(Sampled(G(Z), 0.5), 3), draw="inside", copies=copies)
    (record,) = costs([gradient()], replace(DIRECT, copies=copies))
    assert record.copies == 1


@pytest.mark.parametrize("sampler", [Poisson(0.5), FixedCohort(4)])
def test_users_change_their_clients_where_the_server_adds_the_noise(sampler):
    setting = replace(DIRECT, copies=2, sampler=sampler)
    server, public = costs([update(unit="user", where="server")], setting)
    assert server == Cost("user", "add/remove", "server", NonPrivate(TRUSTED))
    assert public == Cost("user", "add/remove", "public", G(Z), draw="changed", copies=2)


# --- clients


def test_clients_that_add_the_noise_are_missed_when_they_are_away():
    (cost,) = costs([update()], replace(DIRECT, sampler=Poisson(0.5)))
    assert cost == Cost("client", "add/remove", "server", G(Z), draw="inside")
    assert price.total(cost, "public", Poisson(0.5), 8, 5, 5) == (Repeated(Visible(G(Z), 0.5), 5),)  # not Sampled


def test_clients_whose_noise_a_server_adds_are_hidden_by_the_draw():
    server, public = costs([update(where="server")], replace(DIRECT, sampler=Poisson(0.5)))
    assert server == Cost("client", "add/remove", "server", NonPrivate(TRUSTED))
    assert public == Cost("client", "add/remove", "public", G(Z), draw="unit")
    assert price.total(public, "public", Poisson(0.5), 8, 5, 5) == (Repeated(Sampled(G(Z), 0.5), 5),)


@pytest.mark.parametrize("where", ["client", "server"])
def test_cohorts_of_a_fixed_size_replace_a_client_and_double_the_shift(where):
    found = costs([update(where=where)], replace(DIRECT, sampler=FixedCohort(4)))
    assert {c.relation for c in found} == {"replace"} and found[-1].event == G(Z / 2)


def test_a_server_that_clips_whole_rows_protects_no_record():
    """Removing one record may turn a clipped row round: it moves by two bounds, where one is priced."""
    with pytest.raises(SpecError, match="covers whole rows"):
        costs([update(unit="record", where="server")], replace(DIRECT, sampler=Poisson(0.5)))


def test_two_releases_of_drawn_records_have_no_price_in_one_phase():
    """They may be of one batch: a record that is drawn is then in both."""
    drawn = [gradient(name=n, times=1, draw=Draw(0.1)) for n in ("one", "two")]
    with pytest.raises(SpecError, match="one and two are both of drawn units"):
        costs(drawn, DIRECT)
    assert costs([drawn[0], replace(drawn[1], draw=Draw())], DIRECT)


def test_a_total_bounds_only_what_adds_up_by_squares():
    with pytest.raises(SpecError, match="adds up by squares"):
        run_costs([gradient(mechanism=Of(LaplaceEvent(4.0)), total=Of(LaplaceEvent(1.0)))], DIRECT)
    with pytest.raises(SpecError, match="correlated over the rounds"):
        run_costs([update(where="server", total=Gaussian(1.0))], DIRECT)


def test_noise_of_both_is_not_hidden_by_the_draw():
    """A client that is away is missed in what it noises itself, so its draw cannot hide the rest either."""
    both = [update(where="server"), Release("loss", Gaussian(5.0), "client", 1.0)]
    server, public = costs(both, replace(DIRECT, sampler=Poisson(0.5)))
    assert server.event == NonPrivate(TRUSTED)
    assert public == Cost("client", "add/remove", "public", Composed((G(5.0), G(Z))), draw="inside")
    with pytest.raises(SpecError, match="unit = user"):
        costs([replace(r, unit="user") for r in both], DIRECT)


def test_an_adaptive_clip_is_one_gaussian_release_with_its_count():
    count = Release("within", Gaussian(3.0), "client", 0.5, where="server")
    _, public = costs([update(where="server"), count], DIRECT)
    assert isinstance(public.event, G)
    assert public.event.noise_multiplier == pytest.approx((Z**-2 + 3.0**-2) ** -0.5, rel=1e-12)
    _, replaced = costs([update(where="server"), count], replace(DIRECT, sampler=FixedCohort(4)))
    assert replaced.event.noise_multiplier == pytest.approx(public.event.noise_multiplier / 2, rel=1e-12)
    other = Release("within", Of(LaplaceEvent(3.0)), "client", 0.5, where="server")
    assert costs([update(where="server"), other], DIRECT)[1].event == Composed((G(Z), LaplaceEvent(3.0)))


def test_a_schedule_has_a_price_for_every_round():
    events = [costs([update(mechanism=Gaussian(z))], DIRECT)[0].event for z in (1.0, 2.0, 3.0)]
    assert events == [G(1.0), G(2.0), G(3.0)]


# --- sums of everyone's noise


def shown(found):
    return {c.viewer: c.event for c in found}


def test_the_public_sees_the_noise_of_all_but_one_where_everyone_answers():
    everyone = Setting(Direct(), ALL, linear=True)
    assert shown(costs([update()], everyone)) == {"server": G(Z), "public": G(math.sqrt(7) * Z)}
    for less in (replace(everyone, linear=False), replace(everyone, crowd=Crowd(8))):
        assert shown(costs([update()], less)) == {"server": G(Z)}
    heavy = replace(ALL, population=32, heaviest=2.0)  # a row may count twice: it moves the sum by two bounds,
    found = shown(costs([update()], replace(everyone, crowd=heavy)))  # and four times the noise may be the viewer's own
    assert found["public"] == G(math.sqrt(32 - 4) * Z / 2)
    assert "public" not in shown(costs([update()], replace(everyone, crowd=replace(ALL, heaviest=3.0))))


def test_steps_are_no_sum():
    """Only a single Gaussian release adds up; what several of them become in a message is not known."""
    assert shown(costs([gradient()], Setting(Direct(), ALL, linear=True))) == {"server": Repeated(G(Z), 3)}


@pytest.mark.parametrize("bound", [0.5, 0.25, 2.0])
def test_noise_that_a_server_adds_on_top_counts_for_the_public_in_units_of_what_is_below(bound):
    more = Release("downlink", Gaussian(3.0), "client", bound, where="server", onto="update")
    found = shown(costs([update(), more], Setting(Direct(), ALL, linear=True)))
    assert found["server"] == G(Z)  # which adds it and so knows it
    extra = 3.0 * bound / 0.5
    assert found["public"].noise_multiplier == pytest.approx(math.sqrt(7 * Z**2 + extra**2), rel=1e-12)
    fixed = Setting(Direct(), ALL, FixedCohort(8), linear=True)
    assert shown(costs([update(), more], fixed))["public"].noise_multiplier == pytest.approx(
        found["public"].noise_multiplier / 2, rel=1e-12
    )


def test_noise_on_top_of_nothing_protects_nothing():
    more = Release("downlink", Gaussian(3.0), "client", 0.5, where="server", onto="update")
    with pytest.raises(SpecError, match="must release something"):
        costs([more], DIRECT)
    elsewhere = shown(costs([update(), replace(more, onto="other")], Setting(Direct(), ALL, linear=True)))
    assert elsewhere["public"] == G(math.sqrt(7) * Z)


def test_a_secure_sum_has_the_noise_once_and_another_client_knows_its_own_share():
    found = shown(costs([update()], Setting(SecureSum(), ALL, linear=True)))
    assert found == {"server": G(Z), "client": G(Z * math.sqrt(7 / 8))}
    assert Setting(SecureSum(), ALL, linear=True).split == 8
    assert Setting(SecureSum(), replace(ALL, colluders=3), linear=True).split == 5
    for alone in (Setting(SecureSum(), ALL), Setting(SecureSum(), Crowd(8), linear=True)):
        assert alone.split == 1  # everyone adds all of it


# --- the price of a run


def test_a_total_is_the_price_of_the_run_and_the_releases_that_of_a_round():
    pooled = [gradient(total=Gaussian(1.0)), gradient(name="losses", times=1, total=Gaussian(1.0))]
    assert run_costs(pooled, DIRECT) == (Cost("record", "add/remove", "server", G(1.0)),)
    assert costs(pooled, DIRECT)[0].event == Composed((Repeated(G(Z), 3), G(Z)))
    assert run_costs([gradient()], DIRECT) is None


def test_all_releases_must_share_one_total():
    with pytest.raises(SpecError, match="the same total"):
        run_costs([gradient(total=Gaussian(1.0)), gradient(name="losses")], DIRECT)
    with pytest.raises(SpecError, match="the same total"):
        run_costs([gradient(total=Gaussian(1.0)), gradient(name="losses", total=Gaussian(2.0))], DIRECT)


def test_the_total_of_a_server_is_seen_by_the_public_and_doubled_by_fixed_cohorts():
    tree = Tree(2.0, rounds=4)
    level = tree.event().noise_multiplier
    pooled = [update(where="server", mechanism=tree, total=tree)]
    server, public = run_costs(pooled, DIRECT)
    assert (server.event, public.event) == (NonPrivate(TRUSTED), G(level))
    assert run_costs(pooled, replace(DIRECT, sampler=FixedCohort(4)))[1].event == G(level / 2)


@pytest.mark.parametrize("copies", [1, 3])
def test_the_total_of_a_user_is_paid_by_all_its_clients(copies):
    """Their own noise: each pays; the server's: all of them change in one sum, each by two bounds."""
    setting = replace(DIRECT, copies=copies)
    (inside,) = run_costs([gradient(unit="user", total=Gaussian(1.0))], setting)
    assert parts(inside.event) == {G(1.0): copies}
    tree = Tree(2.0, rounds=4)
    _, public = run_costs([update(unit="user", where="server", mechanism=tree, total=tree)], setting)
    assert public.event == G(tree.event().noise_multiplier / (2 * copies))


# --- parts of the data, paper forms, mistakes


def test_releases_of_different_parts_are_alternatives():
    groups = [
        gradient(name=f"group {g}", part=str(g), times=1, mechanism=Gaussian(z)) for g, z in enumerate((1.0, 3.0))
    ]
    (cost,) = costs(groups, DIRECT)
    assert cost.event == Parallel((G(1.0), G(3.0)))
    everywhere = gradient(name="losses", times=1, mechanism=Gaussian(9.0))
    assert costs([everywhere, *groups], DIRECT)[0].event == Composed((G(9.0), Parallel((G(1.0), G(3.0)))))
    alike = [replace(p, mechanism=Gaussian(4.0)) for p in groups]
    assert costs(alike, DIRECT)[0].event == G(4.0)  # the same whichever part a record lies in
    twice = [*groups, gradient(name="more", part="0", times=1, mechanism=Gaussian(5.0))]
    assert costs(twice, DIRECT)[0].event == Parallel((Composed((G(1.0), G(5.0))), G(3.0)))


@pytest.mark.parametrize("mechanism", [None, Gaussian(3.0)])
def test_what_has_no_proof_has_no_price(mechanism):
    printed = Release("update", Unproven("the noise follows the data", mechanism), "record")
    (cost,) = costs([printed], DIRECT)
    assert cost.event == NonPrivate("the noise follows the data")
    (both,) = costs([gradient(), printed], DIRECT)
    assert NonPrivate("the noise follows the data") in both.event.events
    assert math.isinf(price.guarantee((both,), "server", Poisson(1.0), 8, 1, 1, 1e-5, "secure").epsilon)
    (replaced,) = costs([printed, gradient(draw=Draw(size=3, population=12))], DIRECT)
    assert NonPrivate("the noise follows the data") in replaced.event.events


def test_releases_protect_one_unit():
    with pytest.raises(SpecError, match="one unit"):
        costs([gradient(), update()], DIRECT)
    with pytest.raises(SpecError, match="must release something"):
        costs([], DIRECT)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"bound": None}, "needs a bound"),
        ({"bound": 0.0}, "bound"),
        ({"bound": float("nan")}, "bound"),
        ({"where": "cloud"}, "where"),
        ({"times": 0}, "times"),
        ({"where": "server", "times": 2}, "once a round"),
        ({"where": "server", "draw": Draw(rate=0.5)}, "once a round"),
    ],
)
def test_a_release_that_means_nothing_is_refused(keys, match):
    with pytest.raises(SpecError, match=match):
        update(**keys)
    with pytest.raises(SpecError):
        Draw(rate=1.5)


# --- releases beside the rounds


def test_releases_beside_the_rounds_follow_the_relation_of_the_rounds():
    once = derive.once
    sums = Release("sums", Gaussian(6.0), "record", 1.0, times=3)
    assert parts(once([sums], "add/remove")) == {G(6.0): 3}
    assert parts(once([sums], "replace", copies=2)) == {G(3.0): 6}  # each of both clients pays
    assert parts(once([sums, replace(sums, name="more", swing=1, times=1)], "replace")) == {G(3.0): 3, G(6.0): 1}
    server = replace(sums, where="server", times=1)
    assert once([server], "replace") == G(3.0) and once([server], "add/remove", copies=2, changed=True) == G(1.5)
    printed = Release("sums", Unproven("a test"), "record")
    assert once([printed], "replace", copies=3) == NonPrivate("a test")
