import math

import pytest

from sordino.contract.method import Local
from sordino.core.errors import SpecError
from sordino.methods.dp_fedavg import DpFedAvg
from sordino.methods.dp_sgd import DpSgd
from sordino.methods.none import NoPrivacy
from sordino.privacy import events, price
from sordino.privacy.accountants import pld
from sordino.privacy.events import Cost, GaussianEvent, NonPrivate, Repeated, Sampled, Visible
from sordino.privacy.samplers import FixedSizeSampler, Poisson
from sordino.privacy.tightest import epsilon
from support.methods import price as cost_of
from support.problems import plan

RECORD = (Cost("record", "add/remove", "server", GaussianEvent(4.0)),)


def test_the_server_pays_participations_and_the_public_amplified_rounds():
    half = plan(sampler=Poisson(0.5), local=Local(steps=2, batch_rate=0.25))
    costs = cost_of(DpSgd(), half)
    step = Repeated(Sampled(GaussianEvent(1.0), 0.25), 2)
    assert costs == (Cost("record", "add/remove", "server", step),)
    seen = price.total(price.cost_to("server", costs), "server", half.sampler, 8, rounds=30, participations=11)
    assert seen == (Repeated(step, 11),)
    hidden = price.total(price.cost_to("public", costs), "public", half.sampler, 8, rounds=30, participations=30)
    assert hidden == (Repeated(Visible(step, 0.5), 30),)  # of a record: its client shows


@pytest.mark.parametrize("method", [DpFedAvg(), DpFedAvg(weight_cap=5.0)])
def test_a_client_that_is_not_drawn_looks_like_one_that_is_not_there(method):
    half = plan(sampler=Poisson(0.5))
    cost = price.cost_to("public", cost_of(method, half))
    assert cost.unit == "client" and cost.relation == "add/remove"
    assert price.total(cost, "public", half.sampler, 8, 30, 30) == (Repeated(Sampled(GaussianEvent(1.0), 0.5), 30),)
    server = price.guarantee(cost_of(method, half), "server", half.sampler, 8, 30, 30, 1e-5, "research")
    assert math.isinf(server.epsilon) and "receives the clipped updates" in server.reason


@pytest.mark.parametrize("method", [DpFedAvg(), DpFedAvg(weight_cap=5.0)])
def test_cohorts_of_a_fixed_size_are_priced_under_replace_with_twice_the_sensitivity(method):
    fixed = plan(sampler=FixedSizeSampler(4), noise_multiplier=3.0)
    cost = price.cost_to("public", cost_of(method, fixed))
    assert cost.relation == "replace" and cost.event == GaussianEvent(1.5)
    expected = (Repeated(events.FixedSize(GaussianEvent(1.5), 4, 8), 30),)
    assert price.total(cost, "public", fixed.sampler, 8, 30, 30) == expected


def test_a_record_inside_a_cohort_of_fixed_size_is_visible_at_its_rate():
    fixed = plan(sampler=FixedSizeSampler(2))
    cost = price.cost_to("public", cost_of(DpSgd(), fixed))
    expected = (Repeated(Visible(GaussianEvent(1.0), 0.25), 30),)
    assert price.total(cost, "public", fixed.sampler, 8, 30, 30) == expected


def test_full_participation_is_not_sampled():
    cost = price.cost_to("public", cost_of(DpSgd(), plan()))
    assert price.total(cost, "public", Poisson(1.0), 8, 30, 30) == (Repeated(GaussianEvent(1.0), 30),)


def test_with_a_cap_the_cheaper_bound_wins():
    def of(rate, cap):
        g = price.guarantee(RECORD, "public", Poisson(rate), 1000, 20, cap, 1e-5, "research", pld.ROUGH)
        return g.epsilon

    hidden = epsilon(Repeated(Visible(GaussianEvent(4.0), 0.05), 20), 1e-5, pld.ROUGH)
    capped = epsilon(Repeated(GaussianEvent(4.0), 1), 1e-5)
    assert of(0.05, 20) == hidden
    assert of(0.05, 1) == min(hidden, capped)
    assert of(0.9, 1) == capped < epsilon(Repeated(Visible(GaussianEvent(4.0), 0.9), 20), 1e-5, pld.ROUGH)
    assert of(0.05, 19) == hidden < epsilon(Repeated(GaussianEvent(4.0), 19), 1e-5)


def test_the_public_never_pays_more_than_the_server():
    for rate, cap in ((0.1, 3), (0.5, 10), (1.0, 10)):
        both = [
            price.guarantee(RECORD, v, Poisson(rate), 100, 10, cap, 1e-5, "research", pld.ROUGH).epsilon
            for v in ("public", "server")
        ]
        assert both[0] <= both[1] * (1 + 1e-9)


def test_nothing_done_costs_nothing():
    for viewer in price.VIEWERS:
        assert price.guarantee(RECORD, viewer, Poisson(0.5), 9, 0, 0, 1e-5, "research").epsilon == 0.0


def test_fedavg_promises_nothing_to_anyone():
    for viewer in price.VIEWERS:
        found = price.guarantee(cost_of(NoPrivacy(), plan()), viewer, Poisson(0.5), 8, 3, 3, 1e-5, "secure")
        assert math.isinf(found.epsilon) and "No guarantee" in found.sentence()
        assert found.to_json()["epsilon"] is None and found.to_json()["infinite"] is True


def test_a_guarantee_says_all_that_it_needs_to_mean_something():
    found = price.guarantee(RECORD, "server", Poisson(1.0), 9, 12, 7, 1e-5, "research")
    assert (found.unit, found.relation, found.viewer, found.rounds, found.delta) == (
        "record", "add/remove", "server", 12, 1e-5,
    )  # fmt: skip
    for word in ("12 rounds", "any single record", "delta = 1e-05", "curious server", "seed"):
        assert word in found.sentence()
    assert "seed" not in price.guarantee(RECORD, "server", Poisson(1.0), 9, 12, 7, 1e-5, "secure").sentence()


def test_an_unknown_viewer_is_refused():
    with pytest.raises(SpecError, match="viewer must be one of server, public, client or server"):
        price.cost_to("neighbour", RECORD)
    with pytest.raises(SpecError):
        price.cost_to("server", (Cost("client", "add/remove", "public", NonPrivate("x")),))


def test_another_client_sees_what_the_public_sees_and_colluders_see_what_the_server_sees():
    half = plan(sampler=Poisson(0.5))
    for viewer, other in (("client", "public"), ("server+3", "server")):
        for method in (DpSgd(), DpFedAvg()):
            a, b = (
                price.guarantee(cost_of(method, half), v, half.sampler, 8, 5, 5, 1e-5, "secure")
                for v in (viewer, other)
            )
            assert a.epsilon == b.epsilon and a.viewer == viewer
    assert "3 clients that collude" in a.sentence() or math.isinf(a.epsilon)
