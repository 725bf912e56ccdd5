"""One budget over all jobs on the same data."""

import json
import math

import pytest

from sordino.core.errors import BudgetError, RunError, SordinoError, SpecError
from sordino.ledger.ledger import Budget, Charge, ChargeView, Ledger
from sordino.privacy.events import Approximate, Cost, GaussianEvent, NonPrivate, Repeated, Sampled

RECORD = ChargeView("record", "add/remove", "server")


def charge(epsilon=1.0, delta=1e-6, event=None, unit="record", relation="add/remove", viewer="server"):
    return Charge(Cost(unit, relation, viewer, event or GaussianEvent(20.0)), epsilon, delta)


NO_NOISE = charge(math.inf, event=NonPrivate("no noise"))


@pytest.fixture
def book(tmp_path):
    made = Ledger(tmp_path / "ledger.sqlite")
    yield made
    made.close()


def spend(book, *epsilons, data="d", **keys):
    for epsilon in epsilons:
        book.charge("plan", data, charge(epsilon, **keys), job=f"job{book.chain.head()[0]}")


def test_without_a_budget_nothing_is_refused_and_everything_is_counted(book):
    spend(book, 1.0, 2.0, 3.5)
    (total,) = book.totals("d")
    assert total["epsilon"] == 6.5 and total["delta"] == pytest.approx(3e-6) and total["view"] == RECORD
    assert book.left("d") is None and book.budget("d") is None


def test_jobs_share_a_budget_and_the_one_too_many_is_told_what_would_fit(book):
    book.set_budget(Budget(4.0, 1e-4, "plans", None))
    spend(book, 1.0, 1.8)
    before = book.chain.head()
    with pytest.raises(BudgetError) as error:
        spend(book, 2.0)
    text = str(error.value)
    for words in (
        "asks for epsilon 2 at delta 1e-06",
        "budget is epsilon 4, delta 0.0001 (plans)",
        "left: epsilon 1.2",
    ):
        assert words in text
    assert "What would fit: epsilon <= 1.2 with delta <= 9.8e-05" in text and "\n" not in text
    assert "a record (add/remove) against the server" in text
    assert book.chain.head() == before  # nothing was written
    spend(book, 1.2)
    with pytest.raises(BudgetError, match="nothing more"):
        spend(book, 1e-9)


def test_delta_is_a_budget_too(book):
    book.set_budget(Budget(4.0, 1e-5, "plans", None))
    spend(book, 0.1, delta=0.6e-5)
    with pytest.raises(BudgetError, match=r"delta <= 4e-06"):
        spend(book, 0.1, delta=0.5e-5)


def test_other_data_have_a_budget_of_their_own(book):
    book.set_budget(Budget(2.0, 1e-4, "plans", None))
    spend(book, 2.0, data="d")
    spend(book, 2.0, data="e")  # the budget is for each of them
    book.set_budget(Budget(5.0, 1e-4, "plans", None), "e")
    spend(book, 3.0, data="e")
    with pytest.raises(BudgetError):
        spend(book, 1.0, data="d")
    assert book.data() == ["d", "e"] and book.left("e")["epsilon"] == 0.0


def test_the_last_budget_wins_but_cannot_undo_what_is_spent(book):
    book.set_budget(Budget(2.0, 1e-4, "plans", None))
    spend(book, 2.0)
    book.set_budget(Budget(3.0, 1e-4, "plans", None))
    spend(book, 0.5)
    with pytest.raises(BudgetError, match=r"more than this budget has already been spent"):
        book.set_budget(Budget(2.4, 1e-4, "plans", None))
    book.set_budget(Budget(2.5, 1e-4, "plans", None))
    with pytest.raises(BudgetError):
        spend(book, 0.1)


def test_no_budget_covers_what_had_no_noise(book):
    book.charge("plan", "d", NO_NOISE, job="plain")
    with pytest.raises(BudgetError, match="job plain asks for epsilon inf"):
        book.set_budget(Budget(1e6, 0.5, "plans", None), "d")
    book.set_budget(Budget(1.0, 1e-5, "plans", None), "other")
    for theory in ("plans", "rdp", "gdp"):
        book.set_budget(Budget(1.0, 1e-5, theory, None), "other")
        with pytest.raises(BudgetError, match="epsilon inf"):
            book.charge("plan", "other", NO_NOISE)
    (total,) = book.totals("d")
    assert math.isinf(total["epsilon"]) and total["without"] == ["plain"]


@pytest.mark.parametrize(("theory", "fewest", "most"), [("plans", 3, 3), ("rdp", 5, 20), ("gdp", 10, 20)])
def test_theories_differ_in_what_they_admit(book, theory, fewest, most):
    """Jobs of Gaussian(20) x 4 at delta 1e-6: 0.31 each in plain sums; together they cost less than their sum."""
    book.set_budget(Budget(1.0, 1e-5, theory, None))
    event, n = Repeated(GaussianEvent(20.0), 2), 0
    with pytest.raises(BudgetError, match="What would fit"):
        while n < 100:
            book.charge("plan", "d", charge(0.31, 1e-6, event))
            n += 1
    assert fewest <= n <= most


def test_a_release_that_a_theory_cannot_count_is_refused(book):
    book.set_budget(Budget(1.0, 1e-5, "gdp", None))
    with pytest.raises(BudgetError, match="plain Gaussian"):
        book.charge("plan", "d", charge(0.1, event=Sampled(GaussianEvent(9.0), 0.1)))
    with pytest.raises(SordinoError):
        book.set_budget(Budget(1.0, 0.0, "gdp", None))
    with pytest.raises(SpecError, match="theory"):
        book.set_budget(Budget(1.0, 1e-5, "magic", None))


# --- who is protected from whom


def test_a_promise_against_the_server_holds_against_the_public_and_not_the_other_way(book):
    against_server, against_public = charge(viewer="server"), charge(viewer="public")
    public = ChargeView("record", "add/remove", "public")
    assert against_server.at(public).epsilon == 1.0 and against_public.at(RECORD) is None
    book.set_budget(Budget(2.0, 1e-4, "plans", public))
    spend(book, 1.0, viewer="server")
    spend(book, 1.0, viewer="public")
    with pytest.raises(BudgetError):
        spend(book, 0.1)
    book.set_budget(Budget(9.0, 1e-4, "plans", RECORD), "e")
    with pytest.raises(BudgetError, match="gives no guarantee"):
        spend(book, 0.1, data="e", viewer="public")


def test_who_sees_more_is_promised_less():
    def covered(mine, theirs):
        return charge(viewer=mine).at(ChargeView("record", "add/remove", theirs)) is not None

    order = ("public", "client", "server", "server+1", "server+3")  # a client knows when it was not drawn itself
    assert all(covered(a, b) == (i >= j) for i, a in enumerate(order) for j, b in enumerate(order))


def test_replacing_is_removing_and_adding(book):
    """A client-level promise under add/remove costs a record two: once for the old data, once for the new."""
    client, replaced = (
        charge(unit="client", viewer="public"),
        charge(unit="client", relation="replace", viewer="public"),
    )
    record = ChargeView("record", "add/remove", "public")
    twice = client.at(record)
    expected = Approximate(1.0, 1e-6).grouped(2)
    assert (
        (twice.epsilon, twice.delta) == (expected.epsilon, expected.delta) == (2.0, pytest.approx(1e-6 * (1 + math.e)))
    )
    assert twice.cost.event == GaussianEvent(10.0)
    assert replaced.at(record).epsilon == 1.0
    assert client.at(ChargeView("client", "replace", "public")).epsilon == 2.0
    assert replaced.at(ChargeView("client", "add/remove", "public")) is None
    assert charge().at(ChargeView("client", "add/remove", "server")) is None  # a record's says nothing of a client
    assert client.at(client.view) is client


def test_a_budget_without_a_view_takes_that_of_the_first_job(book):
    book.set_budget(Budget(3.0, 1e-4, "plans", None))
    spend(book, 1.0)
    with pytest.raises(BudgetError, match=r"for a record \(add/remove\) against the server"):
        spend(book, 0.1, unit="client", viewer="public")


def test_totals_are_given_only_where_they_mean_something(book):
    spend(book, 1.0)
    spend(book, 1.0, unit="client", viewer="public")
    (total,) = book.totals("d")
    assert total["view"] == ChargeView("record", "add/remove", "public") and total["epsilon"] == 3.0
    spend(book, 0.5, viewer="public", data="e")
    spend(book, 0.25, viewer="server", data="e")
    (total,) = book.totals("e")  # against the server the first promises nothing, against the public both do
    assert total["view"].viewer == "public" and total["epsilon"] == 0.75


# --- releases outside the rounds


@pytest.mark.parametrize("kind", ["evaluation", "trial", "audit"])
def test_releases_outside_the_rounds_are_charged_alike(book, kind):
    book.set_budget(Budget(1.0, 1e-4, "plans", None))
    entry = book.charge(kind, "d", charge(0.7), {"purpose": "accuracy on private data"})
    assert entry.kind == kind and json.loads(entry.what)["purpose"].startswith("accuracy")
    assert book.left("d")["epsilon"] == pytest.approx(0.3)
    with pytest.raises(BudgetError, match=r"left: epsilon 0\.3"):
        book.charge(kind, "d", charge(0.4))
    with pytest.raises(BudgetError):
        book.open_job("it", "d", charge(0.4), 3, 3, True)
    book.open_job("it", "d", charge(0.3), 3, 3, True)


def test_other_kinds_are_not_charges(book):
    for kind in ("round", "budget", "note", "gift"):
        with pytest.raises(SpecError, match="kind must be one of plan, evaluation, trial, audit"):
            book.charge(kind, "d", charge())
    with pytest.raises(SpecError, match="viewer must be one of"):
        book.charge("trial", "d", charge(viewer="me"))
    for bad in (charge(-1.0), charge(math.nan), charge(1.0, -0.1), charge(1.0, 1.0)):
        with pytest.raises(SpecError, match="cannot be charged"):
            book.charge("trial", "d", bad)
    assert book.chain.head()[0] == 0
    assert book.note({"text": "hello"}).kind == "note" and book.data() == []


def test_releases_about_different_owners_do_not_add_up(book):
    """Client 1 has paid for two of the three releases, the others for fewer."""
    book.set_budget(Budget(2.0, 1e-4, "plans", None))
    book.charge("audit", "d", charge(1.0), owners=[1, 2])
    book.charge("audit", "d", charge(1.0), owners=[1, 3])
    with pytest.raises(BudgetError):
        book.charge("audit", "d", charge(0.5), owners=[3, 1])
    book.charge("audit", "d", charge(0.5), owners=[3, 2])
    book.charge("audit", "d", charge(2.0), owners=[9])
    with pytest.raises(BudgetError):
        book.charge("plan", "d", charge(0.1))  # all owners: the first is spent
    assert book.left("d")["epsilon"] == 0.0
    (total,) = book.totals("d")
    assert total["epsilon"] == 2.0  # not 4.5


# --- a job and its plan


def test_a_plan_is_charged_once_and_stays_charged(book, tmp_path):
    book.set_budget(Budget(2.0, 1e-4, "plans", None))
    book.open_job("it", "d", charge(1.5), 3, 3, True)
    again = Ledger(tmp_path / "ledger.sqlite")
    try:
        again.open_job("it", "d", charge(1.5), 3, 3, True)  # a resumed run
        with pytest.raises(BudgetError):
            again.open_job("other", "d", charge(1.5), 3, 3, True)
        assert [e.kind for e in again.chain.select()] == ["budget", "plan"]
        with pytest.raises(RunError, match="other data or rounds"):
            again.open_job("it", "e", charge(1.5), 3, 3, True)
    finally:
        again.close()


def test_a_look_beforehand_writes_nothing(book):
    book.set_budget(Budget(1.0, 1e-4, "plans", None))
    book.check("d", charge(1.0))
    with pytest.raises(BudgetError):
        book.check("d", charge(1.1))
    assert book.chain.head()[0] == 1


def test_an_infinite_epsilon_survives_the_file(book):
    book.charge("plan", "d", NO_NOISE)
    (entry,) = book.charges("d")
    assert entry.epsilon == math.inf and book.chain.verify() == []
