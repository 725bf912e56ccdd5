"""Every client its own budget: read, dealt and turned into participations."""

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import personal, tightest
from sordino.privacy.events import GaussianEvent, NonPrivate, Repeated, Sampled
from sordino.privacy.personal import Budgets, deal, is_public, participations, read, table

RNG = Stream.research(4)


def epsilons(budgets):
    return np.array([budgets.kinds[i][0] for i in budgets.of])


def test_a_distribution_is_dealt_in_its_shares_and_always_alike():
    found = deal("0.5:0.34,1:0.43,2:0.23", 100, 1e-5, RNG)
    assert {e: int((epsilons(found) == e).sum()) for e in (0.5, 1.0, 2.0)} == {0.5: 34, 1.0: 43, 2.0: 23}
    assert (deal("2:0.23,0.5:0.34,1:0.43", 100, 1e-5, RNG).of == found.of).all()
    assert (deal("0.5:0.34,1:0.43,2:0.23", 100, 1e-5, Stream.research(5)).of != found.of).any()
    assert len(set(epsilons(found)[:20])) > 1  # in a random order
    odd = deal("0.5:0.34,1:0.43,2:0.23", 7, 1e-5, RNG)
    assert odd.clients == 7 and np.bincount(odd.of).tolist() == [2, 3, 2]  # 2.38, 3.01, 1.61


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("0.5:0.5,1:0.4", "sum to 0.9"),
        ("0.5:0.5,1:0.6", "sum to 1.1"),
        ("0.5:0.5,0.5:0.5", "twice"),
        ("x:0.5,1:0.5", "'x' is not a number"),
        ("0.5:,1:0.5", "is not a number"),
        ("-1:0.5,1:0.5", "epsilon must be positive"),
        ("nan:1", "epsilon must be finite"),
        ("inf:1", "epsilon must be finite"),
        ("1:1.5,2:-0.5", "share"),
    ],
)
def test_a_distribution_that_is_none_is_refused(text, match):
    with pytest.raises(SpecError, match=match) as error:
        read(text, 10, 1e-5, RNG)
    assert "\n" not in str(error.value)


def test_a_distribution_may_be_longer_than_a_file_name():
    text = ",".join(f"{0.5 + k / 100:.2f}:0.02" for k in range(50))
    assert len(text) > 255
    found = read(text, 100, 1e-5, RNG)
    assert len(found.kinds) == 50 and np.bincount(found.of).tolist() == [2] * 50


def test_a_table_says_it_for_everyone(tmp_path):
    file = tmp_path / "budgets.csv"
    file.write_text("client,epsilon,delta\n1,2.0,1e-6\n0,0.5,\n2,0.5,\n")
    found = read(str(file), 3, 1e-5, RNG)
    assert [found.kinds[i] for i in found.of] == [(0.5, 1e-5), (2.0, 1e-6), (0.5, 1e-5)] and len(found.kinds) == 2
    same = table({0: 0.5, 1: (2.0, 1e-6), 2: 0.5}, 3, 1e-5)
    assert same.kinds == found.kinds and (same.of == found.of).all()


def test_a_list_has_one_for_each_client():
    found = read("0.5,2,0.5", 3, 1e-5, RNG)
    assert [found.kinds[i] for i in found.of] == [(0.5, 1e-5), (2.0, 1e-5), (0.5, 1e-5)]
    assert is_public("0.5,2,0.5") and is_public("1:0.5,2:0.5") and not is_public("budgets.csv")
    with pytest.raises(SpecError, match="1 clients have no budget, client 3 first"):
        read("0.5,2,0.5", 4, 1e-5, RNG)
    with pytest.raises(SpecError, match="there is no client 2"):
        read("0.5,2,0.5", 2, 1e-5, RNG)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("client,epsilon\n0,1\n1,1\n", "1 clients have no budget, client 2 first"),
        ("client,epsilon\n0,1\n1,1\n1,1\n2,1\n", "line 4: client 1 has a budget already"),
        ("client,epsilon\n0,1\n1,1\n3,1\n", "no client 3"),
        ("client,epsilon\n0,1\n1,x\n2,1\n", "line 3: 'x' is not a number"),
        ("client,epsilon\n0,1\n1,nan\n2,1\n", "client 1: epsilon must be finite"),
        ("client,epsilon\n0,1\n1,0\n2,1\n", "client 1: epsilon must be positive"),
        ("client,epsilon,delta\n0,1,1\n1,1,0.1\n2,1,0.1\n", "client 0: delta must lie"),
        ("client,epsilon\n-1,1\n", "line 2: client must be a whole number"),
        ("who,epsilon\n0,1\n", "needs the columns"),
        ("client,epsilon,extra\n0,1,2\n", "needs the columns"),
        ("client,epsilon\n0,1,2\n1,1\n2,1\n", "needs the columns"),
        ("", "needs the columns"),
    ],
)
def test_a_broken_table_is_refused(text, match, tmp_path):
    file = tmp_path / "b.csv"
    file.write_text(text)
    with pytest.raises(SpecError, match=match) as error:
        read(str(file), 3, 1e-5, RNG)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"cannot read .*nowhere\.csv"):
        read(str(tmp_path / "nowhere.csv"), 3, 1e-5, RNG)
    for bad in ({True: 1.0}, {"0": 1.0}, {0.0: 1.0}, {-1: 1.0}):
        with pytest.raises(SpecError, match="no client"):
            table(bad, 3, 1e-5)
    with pytest.raises(SpecError, match="epsilon, delta"):
        table({0: (1.0, 1e-5, 3)}, 1, 1e-5)


@pytest.mark.parametrize("event", [GaussianEvent(12.0), Sampled(GaussianEvent(3.0), 0.05)])
def test_participations_are_the_most_that_the_budget_pays_for(event):
    budgets = Budgets(((0.2, 1e-5), (0.5, 1e-5), (0.5, 1e-7), (1.0, 1e-5)), np.array([0, 1, 2, 3, 1]))
    found = participations(event, budgets)
    assert found[1] == found[4] and 0 <= found[0] < found[2] < found[1] < found[3]
    for (epsilon, delta), n in zip(budgets.kinds, found[:4].tolist(), strict=True):
        assert n == 0 or tightest.epsilon(Repeated(event, n), delta) <= epsilon
        assert tightest.epsilon(Repeated(event, n + 1), delta) > epsilon


def test_a_limit_ends_the_search_and_poor_clients_get_none():
    budgets = Budgets(((0.001, 1e-5), (100.0, 1e-5)), np.array([0, 1, 1]))
    assert participations(GaussianEvent(2.0), budgets, at_most=37).tolist() == [0, 37, 37]
    assert participations(NonPrivate("no noise"), budgets).tolist() == [0, 0, 0]


def test_one_search_a_budget(monkeypatch):
    asked = []
    real = personal.steps_within
    monkeypatch.setattr(personal, "steps_within", lambda *given: asked.append(given) or real(*given))
    participations(GaussianEvent(20.0), Budgets(((1.0, 1e-5),), np.zeros(100_000, np.int64)), at_most=1000)
    assert len(asked) == 1
