"""Outlets: they clip, add the noise that was declared, count every client's uses and keep it to what was paid for."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from sordino.contract.method import Method, started
from sordino.contract.outlets import Outlets, received
from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import State
from sordino.federations.base import Work
from sordino.federations.simulator import SPENT, Simulator
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import GaussianEvent
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.tree import Tree
from sordino.privacy.release import Release, Unproven
from support.problems import federation, job, linear

RNG = Stream.research(3)
ROUND = RNG.at("round", 0)
WIDE = 20_000
UPDATE = Release("update", Gaussian(2.0), "client", 0.5)
STEPS = Release("step", Gaussian(2.0), "client", 1.0, times=3, key="train/noise #")


def outlets(*releases, clients=4, **keys):
    return Outlets(releases or (UPDATE,), RNG.rows(range(clients)), **keys)


def zeros(clients=4, dim=5):
    return torch.zeros(clients, dim)


def test_a_tensor_is_clipped_and_gets_the_declared_noise():
    found = outlets()["update"](torch.full((4, WIDE), 7.0)).double() - 0.5 / math.sqrt(WIDE)
    assert kstest(found.flatten().numpy(), norm(scale=1.0).cdf).pvalue > 1e-3  # 2.0 * 0.5
    assert kstest(found.flatten().numpy(), norm(scale=1.03).cdf).pvalue < 1e-3
    quiet = outlets(replace(UPDATE, mechanism=Gaussian(1e-9)))["update"](torch.full((4, 9), 7.0))
    assert torch.allclose(quiet.norm(dim=1), torch.tensor(0.5), rtol=1e-5)


class InL1(Gaussian):
    norm = 1


def test_the_norm_is_that_of_the_mechanism():
    out = outlets(Release("update", InL1(1e-9), "client", 0.5))
    assert torch.allclose(out["update"](torch.full((4, 9), 7.0)).norm(p=1, dim=1), torch.tensor(0.5), rtol=1e-5)
    out = outlets(Release("update", InL1(1.0), "client", 0.5))
    with pytest.raises(RunError, match="bounded in the L1 norm, not in L2"):
        out["update"](clip_rows(zeros(), 0.5))
    out["update"](clip_rows(zeros(), 0.5, norm=1))


def test_a_bounded_value_is_taken_at_the_declared_bound_and_no_more():
    """A smaller bound gets the declared noise all the same; a larger one is refused."""
    found = outlets()["update"](Bounded(zeros(4, WIDE), 0.1)).double().flatten().numpy()
    assert kstest(found, norm(scale=1.0).cdf).pvalue > 1e-3 and kstest(found, norm(scale=0.2).cdf).pvalue < 1e-3
    with pytest.raises(RunError, match=r"declares the bound 0\.5; its outlet was given 0\.51"):
        outlets()["update"](Bounded(zeros(), 0.51))


def test_values_that_are_no_rows_are_refused_not_clipped_column_by_column():
    for value in (torch.ones(4, 3, 2), Bounded(torch.ones(4, 4, 4), 0.5)):
        with pytest.raises(RunError, match="takes rows"):
            outlets()["update"](value)
    with pytest.raises(RunError, match="one row per client, 4, but was given 3"):
        outlets()["update"](zeros(3))


def test_an_outlet_that_nobody_declared_does_not_exist():
    with pytest.raises(RunError, match="no outlet 'loss': releases declares update"):
        outlets()["loss"]
    assert list(outlets(UPDATE, STEPS)) == ["update", "step"] and len(outlets(UPDATE, STEPS)) == 2


def test_noise_is_each_clients_own_and_fresh_at_every_use():
    out = outlets(STEPS)
    first, second = (out["step"](zeros()) for _ in range(2))
    assert len({row.numpy().tobytes() for row in torch.cat([first, second])}) == 8
    alone = Outlets((STEPS,), RNG.rows([2]))["step"](zeros(1))
    assert torch.equal(alone[0], first[2])  # whoever else is there


# --- counts


def test_more_uses_than_declared_are_refused():
    out = outlets()
    out["update"](zeros())
    with pytest.raises(RunError, match="declared once a round and its outlet was used once more"):
        out["update"](zeros())
    steps = outlets(STEPS)
    for _ in range(3):
        steps["step"](zeros())
    with pytest.raises(RunError, match="declared 3 times a round"):
        steps["step"](zeros())


def test_uses_are_counted_by_client_not_by_call():
    """Groups of clients in turn: each client may use what it declared, whoever went before; not more."""
    out = outlets()
    for at in ([0, 2], [3], [1]):
        out.only(np.array(at))["update"](zeros(len(at)))
    assert out.used["update"].tolist() == [1, 1, 1, 1]
    with pytest.raises(RunError, match="used once more"):
        out.only(np.array([3]))["update"](zeros(1))
    with pytest.raises(RunError, match="used once more"):
        out["update"](zeros())


def test_a_group_inside_a_group_counts_for_the_clients_it_has():
    out = outlets()
    inner = out.only(np.array([1, 3])).only(np.array([1]))
    assert inner.rng.ids.tolist() == [3]
    inner["update"](zeros(1))
    assert out.used["update"].tolist()[3] == 1 and out.used["update"].sum() == 1


def test_groups_draw_the_noise_that_all_together_would():
    whole = outlets(STEPS)
    together = [whole["step"](zeros()) for _ in range(2)]
    parts = outlets(STEPS)
    for at in ([0, 2], [1, 3]):
        some = parts.only(np.array(at))
        for step in range(2):
            assert torch.equal(some["step"](zeros(2)), together[step][at])


def test_overlapping_groups_never_draw_the_same_noise_twice():
    out = outlets(STEPS)
    rows = [out.only(np.array([0]))["step"](zeros(1))[0]]
    rows += list(out.only(np.array([0, 1]))["step"](zeros(2)))
    rows += [out.only(np.array([1]))["step"](zeros(1))[0], out.only(np.array([0]))["step"](zeros(1))[0]]
    assert len({row.numpy().tobytes() for row in rows}) == len(rows) == 5
    assert out.used["step"].tolist() == [3, 2]
    out.only(np.array([1]))["step"](zeros(1))  # its third
    with pytest.raises(RunError, match="3 times"):
        out.only(np.array([1]))["step"](zeros(1))


def test_a_declared_outlet_that_nobody_used_is_refused_before_anything_leaves():
    out = outlets(UPDATE, STEPS)
    sent = Message({"update": out["update"](zeros())})
    with pytest.raises(RunError, match="the release step was declared and its outlet was never used"):
        out.check(sent)
    out["step"](zeros())
    out.check(sent)


def test_who_need_not_use_an_outlet():
    """Nobody there, a published form, one of several parts of the data, noise on top of another field."""
    outlets(clients=0).check(Message({"update": zeros(0)}))
    for release in (
        replace(UPDATE, mechanism=Unproven("a test", Gaussian(1.0))),
        replace(UPDATE, part="general"),
        replace(UPDATE, where="server", onto="other"),
    ):
        outlets(release).check(Message({"other": zeros()}))


# --- multipliers of single clients


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_a_client_may_have_more_noise_than_declared():
    out = outlets()["update"](zeros(4, WIDE), multiplier=column(2.0, 4.0, 8.0, 2.0)).double().std(dim=1)
    assert torch.allclose(out, torch.tensor([1.0, 2.0, 4.0, 1.0], dtype=torch.float64), rtol=0.03)


@pytest.mark.parametrize("less", [1.99, 0.0, -3.0, float("nan"), -math.inf])
def test_less_noise_than_declared_is_refused_for_any_client(less):
    with pytest.raises(RunError, match="less noise than was paid for"):
        outlets()["update"](zeros(), multiplier=column(2.0, 2.0, less, 5.0))


def test_an_infinite_multiplier_silences_a_client():
    rows = outlets()["update"](torch.ones(4, 6), multiplier=column(2.0, math.inf, 2.0, math.inf))
    assert not rows[[1, 3]].any() and torch.isfinite(rows).all() and not (rows[[0, 2]] == 0).any()


def test_clients_with_budgets_of_their_own_have_their_own_noise():
    """The declared multiplier times what a client's is over that of the run."""
    own = column(1.0, 3.0, 1.0, 1.5)
    found = outlets(own=own, base=1.0)["update"](zeros(4, WIDE)).double().std(dim=1)
    assert torch.allclose(found, torch.tensor([1.0, 3.0, 1.0, 1.5], dtype=torch.float64), rtol=0.03)
    some = outlets(own=own, base=1.0).only(np.array([3, 1]))["update"](zeros(2, WIDE)).double().std(dim=1)
    assert torch.allclose(some, torch.tensor([1.5, 3.0], dtype=torch.float64), rtol=0.03)
    with pytest.raises(RunError, match="less noise"):
        outlets(own=column(1.0, 0.9, 1.0, 1.0), base=1.0)["update"](zeros())


def test_a_share_of_the_noise_is_a_part_of_its_variance():
    found = outlets(split=9)["update"](zeros(4, WIDE)).double().std(dim=1)
    assert torch.allclose(found, torch.tensor(1 / 3, dtype=torch.float64), rtol=0.03)


def test_an_unproven_release_acts_as_printed_and_checks_nothing():
    out = outlets(Release("update", Unproven("a test", Gaussian(1.0)), "record"))
    long = torch.full((4, WIDE), 50.0)
    found = (out["update"](long, multiplier=column(0.1, 0.2, 0.0, 0.1)).double() - 50).std(dim=1)
    assert torch.allclose(found, torch.tensor([0.1, 0.2, 0.0, 0.1], dtype=torch.float64), rtol=0.03, atol=1e-6)
    as_it_is = outlets(Release("update", Unproven("a test"), "record"))
    assert torch.equal(as_it_is["update"](long), long)


# --- the meter of a total that covers the run


POOLED = replace(STEPS, total=Gaussian(1.0))  # a use at 2.0 is a quarter of the total


def test_a_client_is_kept_to_the_total_over_rounds():
    spent = torch.zeros(4, dtype=torch.float64)
    for _ in range(4):  # four rounds of one use each
        out = outlets(POOLED, spent=spent)
        out["step"](zeros())
        spent = out.spent
    assert torch.allclose(spent, torch.ones(4, dtype=torch.float64))
    with pytest.raises(RunError, match=r"to 1\.25 times the total that the run pays for"):
        outlets(POOLED, spent=spent)["step"](zeros())


def test_every_client_has_a_meter_of_its_own():
    out = outlets(POOLED, spent=torch.tensor([0.0, 0.9, 0.5, 0.75]).double())
    out["step"](zeros(), multiplier=column(2.0, 4.0, math.inf, 2.0))
    assert out.spent.tolist() == pytest.approx([0.25, 0.9625, 0.5, 1.0])  # (1 / z)^2 each; silence is free
    out.only(np.array([0, 2]))["step"](zeros(2))
    assert out.spent.tolist() == pytest.approx([0.5, 0.9625, 0.75, 1.0])
    with pytest.raises(RunError, match="times the total"):
        out.only(np.array([1]))["step"](zeros(1))


def test_a_client_with_less_budget_is_metered_by_its_own_total():
    out = outlets(POOLED, own=column(1.0, 2.0), base=1.0, clients=2, spent=torch.zeros(2).double())
    out["step"](zeros(2))  # both at twice their own multiplier
    assert out.spent.tolist() == pytest.approx([0.25, 0.25])
    with pytest.raises(RunError, match=r"0\.5 times a client's, which is less noise"):
        out["step"](zeros(2), multiplier=column(2.0, 2.0))  # the run's noise is not the second one's
    out["step"](zeros(2), multiplier=column(2.0, 8.0))
    assert out.spent.tolist() == pytest.approx([0.5, 0.3125])


def test_of_parts_of_the_data_the_dearest_counts():
    """A record lies in one part: what one part spent is there for the other too."""
    parts = [replace(POOLED, name=f"part {g}", part=str(g), times=2) for g in (0, 1)]
    out = outlets(*parts, clients=2, spent=torch.zeros(2).double())
    out["part 0"](zeros(2))
    out["part 1"](zeros(2))
    assert out.spent.tolist() == pytest.approx([0.25, 0.25])
    out["part 1"](zeros(2), multiplier=column(2.0, 4.0))
    assert out.spent.tolist() == pytest.approx([0.5, 0.3125])


def test_the_meter_of_a_run_is_kept_by_the_clients_between_rounds():
    """The simulator keeps it in float64 for those who took part."""

    class Pooled(Method):
        def releases(self, plan, round=0, state=None):
            return (Release("update", Gaussian(2.0), "client", 1.0, total=Gaussian(1.0)),)

        def train(self, state, site):
            return Message({"update": site.out["update"](torch.zeros(len(site.data.sizes), 3))}), site.kept()

    made = job(linear(), federation((3,) * 4), method="none", rounds=9)
    clients = Simulator(torch.device("cpu"), made.federation.data, RNG)
    clients.open(Work(Pooled(), made.model, made.plan))
    state = started(Pooled(), State(torch.zeros(3)), made.model.layout, made.plan)
    for number, cohort in enumerate(([0, 1], [1], [1, 3], [1])):
        clients.ask("train", replace(state, round=number), cohort)
    kept = clients.store.read(SPENT, range(4), torch.zeros(4, dtype=torch.float64))
    assert kept.dtype == torch.float64 and kept.tolist() == pytest.approx([0.25, 1.0, 0.0, 0.25])
    with pytest.raises(RunError, match="times the total"):
        clients.ask("train", replace(state, round=4), [0, 1])
    clients.ask("train", replace(state, round=4), [0, 2])  # who has something left goes on


# --- noise of a trusted server


SERVER = replace(UPDATE, where="server", key="merge/update")


def test_rows_for_a_server_are_clipped_and_have_no_noise_yet():
    rows = outlets(SERVER)["update"](torch.full((4, 9), 7.0))
    assert torch.equal(rows, clip_rows(torch.full((4, 9), 7.0), 0.5).value)


@pytest.mark.parametrize("field", [torch.full((4, 9), 0.2), torch.full((4, 9), float("nan"))])
def test_rows_beyond_the_servers_bound_are_refused(field):
    out = outlets(SERVER)
    out["update"](zeros(4, 9))
    with pytest.raises(RunError, match=r"the server's noise is for 0\.5"):
        out.check(Message({"update": field}))  # something else than what the outlet gave
    out.check(Message({"update": torch.full((4, 9), 0.1)}))
    with pytest.raises(RunError, match="which the message lacks"):
        out.check(Message({"other": zeros()}))


@pytest.mark.parametrize("heavy", [1.01, -1.5, float("nan"), math.inf])
def test_rows_that_weigh_more_than_once_are_refused_where_the_server_adds_the_noise(heavy):
    out = outlets(SERVER)
    sent = out["update"](zeros())
    with pytest.raises(RunError, match="have weights above 1"):
        out.check(Message({"update": sent}, torch.tensor([1.0, heavy, 0.5, 0.0])))
    out.check(Message({"update": sent}, torch.tensor([1.0, 0.5, -1.0, 0.0])))
    inside = outlets()  # where the client adds it, its row is noisy already
    inside.check(Message({"update": inside["update"](zeros())}, torch.tensor([3.0, 2.0, 1.0, 0.0])))


def at_server(message, *releases, late=False, run=RNG, round=0):
    return received(message, releases or (SERVER,), round, ROUND, run, late)


def test_the_sum_gets_the_noise_of_the_release_once():
    seen = at_server(Message({"update": torch.full((4, WIDE), 0.1)}, torch.tensor([1.0, 0.5, 1.0, 0.5])))
    assert len(seen) == 1 and seen.weight.tolist() == [3.0]
    noise = seen["update"][0].double().numpy() - 0.3
    assert kstest(noise, norm(scale=1.0).cdf).pvalue > 1e-3 and kstest(noise, norm(scale=1.1).cdf).pvalue < 1e-3
    again = seen.total("update")
    assert torch.equal(again["update"], seen["update"])  # as the usual merge asks for it


def test_an_empty_cohort_gets_the_noise_all_the_same():
    seen = at_server(Message({"update": zeros(0, WIDE)}))["update"][0].double().numpy()
    assert kstest(seen, norm(scale=1.0).cdf).pvalue > 1e-3


def test_without_a_release_at_the_server_rows_arrive_as_they_are():
    sent = Message({"update": torch.ones(4, 3)})
    assert at_server(sent, UPDATE) is sent


def test_noise_on_top_goes_onto_the_field_it_names():
    more = Release("downlink", Gaussian(3.0), "client", 2.0, where="server", onto="update")
    seen = at_server(Message({"update": zeros(4, WIDE), "count": torch.ones(4, 1)}), UPDATE, more)
    assert float(seen["update"].std()) == pytest.approx(6.0, rel=0.03) and seen["count"].tolist() == [[4.0]]
    assert "downlink" not in seen.fields


def test_correlated_noise_comes_from_the_stream_of_the_run():
    tree = replace(SERVER, mechanism=Tree(2.0, 4, 4, 1))
    sent, other = Message({"update": zeros(2, 50)}), Stream.research(4)
    one, same = (received(sent, (tree,), 1, RNG.at("round", r), RNG)["update"] for r in (1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, at_server(sent, tree, run=other, round=1)["update"])
    fresh = [received(sent, (SERVER,), 1, RNG.at("round", r), RNG)["update"] for r in (1, 2)]
    assert not torch.equal(*fresh)


# --- rows that come a round late


def heard(rows, weight=None, late=True, bound=0.5):
    quiet = replace(SERVER, mechanism=Gaussian(1e-12), bound=bound)
    return received(Message({"update": rows}, weight), (quiet,), 0, ROUND, RNG, late)["update"][0]


def test_rows_clipped_to_an_older_bound_are_clipped_to_the_present_one():
    rows = torch.tensor([[0.8, 0.0], [0.0, 0.3], [0.0, -0.9]])
    assert torch.allclose(heard(rows), torch.tensor([0.5, -0.2]), atol=1e-5)
    assert torch.allclose(heard(rows, late=False), torch.tensor([0.8, -0.6]), atol=1e-5)


def test_rows_that_fit_are_not_touched_in_a_single_bit():
    """Clipping stays a hair below its bound, so that clipping what was clipped would change the last bits."""
    rows = clip_rows(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 9, 0.5).value
    assert torch.equal(heard(rows), heard(rows, late=False))
    exact = torch.tensor([[0.5, 0.0], [-0.5, 0.0]])  # a count of +-1/2, exactly at its bound
    assert torch.equal(heard(exact, bound=0.5), heard(exact, late=False, bound=0.5))
    assert not torch.equal(clip_rows(exact, 0.5).value, exact)  # which a second clip would change


def test_weights_count_in_whether_a_late_row_exceeds():
    rows = torch.tensor([[0.8, 0.0], [0.0, 0.1]])
    assert torch.allclose(heard(rows, torch.tensor([0.5, 1.0])), torch.tensor([0.4, 0.1]), atol=1e-6)  # 0.4 fits
    assert torch.allclose(heard(rows, torch.tensor([0.9, 1.0])), torch.tensor([0.45, 0.1]), atol=1e-5)


def test_no_noise_is_drawn_twice_whatever_the_keys_are():
    """A use of its own for every draw of one path: without #, of two releases with one key, and past the method."""
    twice = replace(STEPS, key="", mechanism=Gaussian(1.0))
    out = outlets(twice)
    draws = [out["step"](zeros()) for _ in range(3)]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
    alike = [replace(UPDATE, name=name, key="noise") for name in ("one", "two")]
    out = outlets(*alike)
    assert not torch.equal(out["one"](zeros()), out["two"](zeros()))
    named = outlets(replace(UPDATE, name="train", mechanism=Gaussian(2.0)))["train"](zeros())
    assert not torch.allclose(named, RNG.rows(range(4)).at("train").normal(5, like=zeros()))


def test_clients_with_budgets_need_noise_that_can_follow_them():
    class Fixed:
        def apply(self, x, rng, use):
            return x.value

        def event(self, split=1):
            return GaussianEvent(1.0)

    own = column(1.0, 3.0, 1.0, 1.5)
    with pytest.raises(RunError, match="has no noise multiplier that could follow them"):
        outlets(replace(UPDATE, mechanism=Fixed()), own=own, base=1.0)["update"](zeros())
    with pytest.raises(RunError, match="less noise than was paid for"):  # the run's noise is not the second one's
        outlets(own=own, base=1.0)["update"](zeros(), multiplier=column(2.0, 2.0, 2.0, 3.0))
