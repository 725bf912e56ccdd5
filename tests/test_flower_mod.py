"""The mod and the strategy for existing Flower apps, in this process: nothing but clipped updates and priced noise."""

from __future__ import annotations

import difflib
import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, Krum, QFedAvg

import sordino.flower
from sordino.core.errors import BudgetError, RunError, SpecError
from sordino.flower import Private, private_mod
from sordino.foreign import client
from sordino.foreign.terms import RunTerms
from sordino.ledger.ledger import Budget, Ledger

APP = Path(__file__).parent.parent / "examples" / "flower_app"
TERMS = RunTerms("a1", 4, 3, 1.0, 2.0, 1e-5)
PLAN = {"epsilon": 3.0, "delta": 1e-5, "clients": 4, "clip": 1.0, "rounds": 3}


class Nodes:
    """A grid of which only the names of the nodes are used."""

    def __init__(self, count):
        self.count = count

    def get_node_ids(self):
        return [100 + i for i in reversed(range(self.count))]


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Give this process the identity that Flower gives to the processes of an app."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def make(tmp_path):
    def made(strategy=None, **keys):
        return Private(strategy or FedAvg(), **PLAN | {"ledger": tmp_path / "ledger.sqlite", "wait": 0.0} | keys)

    return made


def record(**values):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def model(dim=3):
    return record(w=np.zeros(dim, np.float32), b=np.float32(0.0))


def asked(arrays=None, terms=TERMS, kind="train"):
    config = ConfigRecord(terms.config() | {"server-round": 1})
    message = Message(RecordDict({"arrays": arrays or model(), "config": config}), dst_node_id=7, message_type=kind)
    message.metadata.__dict__["_message_id"] = "m"
    return message


def context(**config):
    return Context(1, 7, config, RecordDict(), {})


def reply_of(app, message=None, **keys):
    return private_mod(**{"clip": 1.0} | keys)(message or asked(), context(), app)


def returns(**arrays):
    def app(message, context):
        metrics = MetricRecord({"num-examples": 12345, "loss": 0.25})
        secret = ConfigRecord({"secret": "x"})
        content = RecordDict({"arrays": record(**arrays), "metrics": metrics, "more": secret})
        return Message(content, reply_to=message)

    return app


def vector(reply):
    (arrays,) = reply.content.array_records.values()
    return np.concatenate([a.numpy().reshape(-1) for a in arrays.values()])


def answer(message, update):
    """Return a reply from the node that a message of the strategy was sent to."""
    back = Message(RecordDict({"update": update}), reply_to=message)
    back.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return back


# --- the mod


def test_only_the_clipped_update_leaves():
    reply = reply_of(returns(w=np.full(3, 30.0, np.float32), b=np.float32(40.0)))
    assert list(reply.content) == ["update"] and not reply.content.metric_records and not reply.content.config_records
    update = vector(reply)
    assert 1 - 1e-5 < np.linalg.norm(update.astype(np.float64)) <= 1.0  # the 0-d array counts too
    assert update[3] / update[0] == pytest.approx(4 / 3)
    small = vector(reply_of(returns(w=np.float32([0.1, 0, 0]), b=np.float32(0.2))))
    assert small.tolist() == np.float32([0.1, 0, 0, 0.2]).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, 1e-320])
def test_an_update_of_zero_or_that_is_not_finite_is_zero(bad):
    reply = reply_of(returns(w=np.full(3, bad), b=np.float32(0.0)))
    assert not vector(reply).any()


def test_huge_updates_do_not_overflow_past_the_clip():
    update = vector(reply_of(returns(w=np.full(3, 1e300), b=np.float64(-1e300))))
    assert np.allclose(update, [0.5, 0.5, 0.5, -0.5], atol=1e-5)


def test_the_update_is_what_changed_even_if_the_app_changes_what_it_received():
    def app(message, context):
        message.content["arrays"]["w"] = Array(np.full(3, 9.0, np.float32))
        return returns(w=np.float32([1.25, 1, 1]), b=np.float32(1.0))(message, context)

    start = record(w=np.ones(3, np.float32), b=np.float32(1.0))
    assert vector(reply_of(app, asked(start))).tolist() == [0.25, 0, 0, 0]


@pytest.mark.parametrize(
    "arrays",
    [
        {"w": np.zeros(3, np.int64), "b": np.float32(0)},
        {"w": np.zeros(3, np.float32), "b": np.int64(1)},
        {"w": np.zeros(4, np.float32), "b": np.float32(0)},
        {"w": np.zeros(3, np.float32)},
        {"w": np.zeros(3, np.float32), "b": np.float32(0), "age": np.float32(44)},
    ],
)
def test_other_arrays_than_those_received_are_refused(arrays):
    reply = reply_of(returns(**arrays))
    assert reply.has_error() and reply.error.reason == client.FORM


@pytest.mark.parametrize("kind", ["evaluate", "query", "query.names"])
def test_evaluation_and_queries_are_not_answered_and_not_even_run(kind):
    ran = []
    reply = reply_of(lambda *_: ran.append(1), asked(kind=kind))
    assert reply.error.reason == client.NOT_PRIVATE and not ran


@pytest.mark.parametrize("error", [ValueError("patient 17 has cancer"), SystemExit("patient 17")])
def test_the_text_of_an_exception_does_not_leave(error):
    def app(message, context):
        raise error

    assert reply_of(app).error.reason == client.FAILED


def test_a_clip_that_differs_from_the_servers_is_refused():
    ran = []
    assert reply_of(lambda *_: ran.append(1), clip=2.0).error.reason == client.TERMS
    bare = Message(RecordDict({"arrays": model(), "config": ConfigRecord({})}), dst_node_id=7, message_type="train")
    bare.metadata.__dict__["_message_id"] = "m"
    assert reply_of(lambda *_: ran.append(1), bare).error.reason == client.TERMS
    assert not ran


def test_at_a_site_with_a_policy_the_app_is_not_run_here():
    """What its daemon answers is tested in tests/deploy/test_foreign_sites.py."""
    ran = []
    reply = private_mod(clip=1.0)(asked(), context(socket="/run/nobody/listens"), lambda *_: ran.append(1))
    assert reply.error.reason == client.UNREACHABLE and not ran
    reply = private_mod(clip=1.0)(asked(kind="evaluate"), context(socket="/run/nobody/listens"), None)
    assert reply.error.reason == client.NOT_PRIVATE


def test_the_client_imports_no_torch():
    import subprocess

    code = "import sys; from sordino.flower import private_mod; private_mod(1.0); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("unit", ["record", "user"])
def test_records_of_foreign_code_are_refused(make, unit):
    with pytest.raises(SpecError, match="nobody can bound what one record does"):
        make(unit=unit)
    with pytest.raises(SpecError, match="nobody can bound what one record does"):
        private_mod(1.0, unit=unit)


# --- the strategy


def play(strategy, updates, arrays, round=1, nodes=4):
    """Play a round in which node i answers with updates[i]; return the new arrays."""
    messages = strategy.configure_train(round, arrays, ConfigRecord({}), Nodes(nodes))
    replies = [answer(m, updates[m.metadata.dst_node_id - 100]) for m in messages]
    return strategy.aggregate_train(round, replies)[0]


def test_the_noise_has_the_calibrated_scale_and_is_divided_by_a_constant(make):
    dim = 100_000  # the standard error of the scale is 0.22 %
    strategy = make(client_rate=0.5)
    start = record(w=np.zeros(dim, np.float32))
    new = play(strategy, [record(w=np.zeros(dim, np.float32))] * 4, start)["w"].numpy()
    wanted = strategy.terms.noise_multiplier * 1.0 / (0.5 * 4)
    assert abs(new.std() / wanted - 1) < 0.015 and abs(new.mean()) < 5 * wanted / math.sqrt(dim)


def test_epsilon_is_that_of_another_accountant(make):
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    for rate in (1.0, 0.25):
        strategy = make(client_rate=rate, rounds=20)
        step = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(strategy.terms.noise_multiplier))
        other = PLDAccountant().compose(dp.SelfComposedDpEvent(step, 20)).get_epsilon(1e-5)
        assert other == pytest.approx(3.0, rel=2e-3) and strategy.guarantee.epsilon <= 3.0
    said = strategy.guarantee.sentence()
    assert "In total over 20 rounds, all data of any single client" in said and "added or removed" in said
    assert math.isinf(strategy.server_guarantee.epsilon) and "must be trusted" in strategy.server_guarantee.sentence()


class Still:
    """Noise that is zero and remembers the sum and the bound that it was given."""

    def apply(self, x, rng, use):
        self.sum, self.bound = x.value[0].numpy().copy(), x.bound
        return x.value


@pytest.fixture
def still(make):
    def made(*args, **keys):
        strategy = make(*args, **keys)
        strategy._mechanism = Still()
        return strategy

    return made


def test_a_client_changes_the_sum_by_at_most_the_clip(still):
    rng = np.random.default_rng(0)
    mod = private_mod(clip=1.0)
    sums = []
    for size in (1e-3, 1.0, 1e4, np.inf):
        new = {"w": rng.normal(size=3) * size, "b": np.float64(rng.normal() * size)}
        mine = mod(asked(), context(), returns(**new)).content["update"]
        others = [record(w=np.float32([0.1, 0.2, 0.3]), b=np.float32(0.1))] * 3
        strategy = still()
        play(strategy, [mine, *others], model())
        sums.append(strategy._mechanism.sum - 3 * np.float32([0.1, 0.2, 0.3, 0.1]).astype(np.float64))
        assert strategy._mechanism.bound == 1.0
    assert all(np.linalg.norm(s) <= 1.0 for s in sums)  # added or removed
    assert np.linalg.norm(sums[2]) > 0.99 and not sums[3].any()


def test_replies_that_the_mod_would_not_send_count_as_nothing(still):
    fine = record(w=np.float32([0.5, 0, 0]), b=np.float32(0))
    for bad in (
        record(w=np.float32([2, 0, 0]), b=np.float32(0)),
        record(w=np.float32([np.nan, 0, 0]), b=np.float32(0)),
        record(w=np.float64([0.5, 0, 0]), b=np.float32(0)),
        record(w=np.float32([0.5, 0]), b=np.float32(0)),
        record(w=np.float32([0.5, 0, 0])),
    ):
        strategy = still()
        new = play(strategy, [bad, fine, fine, fine], model())
        assert strategy._mechanism.sum.tolist() == [1.5, 0, 0, 0]
        assert new["w"].numpy().tolist() == [0.375, 0, 0] and new["w"].numpy().dtype == np.float32
        assert new["b"].numpy().shape == ()


def test_nobody_counts_twice_and_strangers_do_not_count(still):
    strategy = still()
    messages = strategy.configure_train(1, model(), ConfigRecord({}), Nodes(4))
    fine = record(w=np.float32([0.5, 0, 0]), b=np.float32(0))
    stranger = answer(messages[0], fine)
    stranger.metadata.__dict__["_src_node_id"] = 999
    strategy.aggregate_train(1, [answer(messages[0], fine), answer(messages[0], fine), stranger])
    assert strategy._mechanism.sum.tolist() == [0.5, 0, 0, 0]
    with pytest.raises(RunError, match="released already"):
        strategy.aggregate_train(1, [])


def test_cohorts_are_poisson_draws_and_may_be_empty(make):
    strategy = make(client_rate=0.1, rounds=200, epsilon=50.0)
    sizes, arrays, times = [], record(w=np.zeros(8, np.float32)), np.zeros(4)
    for r in range(1, 201):
        messages = strategy.configure_train(r, arrays, ConfigRecord({}), Nodes(4))
        assert isinstance(messages, list)
        sizes.append(len(messages))
        for m in messages:
            times[m.metadata.dst_node_id - 100] += 1
        assert strategy.aggregate_train(r, [])[0]["w"].numpy().any()  # noise all the same
    counts = np.bincount(sizes, minlength=5)
    assert abs(counts[0] - 131) < 34 and abs(times.sum() - 80) < 43 and len(set(sizes)) > 1  # five standard deviations


def test_more_rounds_other_orders_and_other_populations_are_refused(make, tmp_path):
    with pytest.raises(RunError, match="4 rounds were asked for; 3 are planned"):
        make().start(Nodes(4), model(), num_rounds=4)
    with pytest.raises(RunError, match="once, in order"):
        make().configure_train(2, model(), ConfigRecord({}), Nodes(4))
    for count in (3, 5):
        with pytest.raises(RunError, match=f"{count} nodes are online"):
            make().configure_train(1, model(), ConfigRecord({}), Nodes(count))
    with pytest.raises(SpecError, match="steps has type int64"):
        make().configure_train(1, record(steps=np.int64(3)), ConfigRecord({}), Nodes(4))
    assert not (tmp_path / "ledger.sqlite").exists()  # nothing was charged


def test_the_whole_plan_is_charged_before_the_first_round(make, tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as book:
        book.set_budget(Budget(5.0, 1e-3, "plans", None), "wards")
    make(data="wards").configure_train(1, model(), ConfigRecord({}), Nodes(4))
    with Ledger(tmp_path / "ledger.sqlite", "read") as book:
        (entry,) = book.charges("wards")
        assert (entry.unit, entry.relation, entry.viewer) == ("client", "add/remove", "public")
        assert 2.98 < entry.epsilon <= 3.0
    with pytest.raises(BudgetError):
        make(data="wards").configure_train(1, model(), ConfigRecord({}), Nodes(4))


@pytest.mark.parametrize("kind", [FedAvg, FedAvgM, FedProx, FedAdam])
def test_server_optimisers_see_the_noisy_mean_alone(still, kind):
    strategy = still(kind(min_available_nodes=50, min_train_nodes=50))
    update, arrays = record(w=np.float32([0.5, 0, 0]), b=np.float32(0)), model()
    alone = kind()
    for r in (1, 2):
        old = {n: a.numpy() for n, a in arrays.items()}
        new = play(strategy, [update] * 4, arrays, r)
        mean = RecordDict(
            {
                "a": record(w=old["w"] + np.float32([0.5, 0, 0]), b=old["b"]),
                "m": MetricRecord({"num-examples": 1.0}),
            }
        )
        alone.configure_train(r, arrays, ConfigRecord({}), Nodes(4))
        wanted, _ = alone.aggregate_train(r, [Message(mean, dst_node_id=1, message_type="train")])
        assert new["w"].numpy().tolist() == pytest.approx(wanted["w"].numpy().tolist())
        arrays = new


@pytest.mark.parametrize("kind", [FedMedian, QFedAvg, Krum])
def test_strategies_that_look_at_single_clients_are_refused(make, kind):
    with pytest.raises(SpecError, match="cannot be made private"):
        make(kind() if kind is not QFedAvg else kind(client_learning_rate=0.1))


def test_a_strategy_that_sends_its_own_messages_is_refused(make):
    class Own(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return []

    with pytest.raises(SpecError, match="its own configure_train"):
        make(Own())


def test_reasons_of_clients_are_printed_once(make, capsys):
    strategy = make()
    for r in (1, 2):
        messages = strategy.configure_train(r, model(), ConfigRecord({}), Nodes(4))
        texts = [client.FAILED, client.FAILED, "Traceback: patient 17", client.SAYS + "x" * 5000]
        strategy.aggregate_train(
            r, [Message(Error(code=0, reason=t), reply_to=m) for m, t in zip(messages, texts, strict=True)]
        )
    said = capsys.readouterr().out
    assert said.count(client.FAILED) == 1 and "patient 17" not in said and len(said) < 2500


def test_clients_are_never_asked_to_evaluate(make):
    strategy = make()
    assert strategy.configure_evaluate(1, model(), ConfigRecord({}), Nodes(4)) == []
    assert strategy.aggregate_evaluate(1, []) is None


# --- the example


def test_the_example_needs_at_most_five_changed_lines():
    changed = 0
    for name in ("client.py", "server.py"):
        old, new = ((APP / when / name).read_text().splitlines() for when in ("before", "after"))
        changed += sum(line.startswith("+ ") and line != "+ " for line in difflib.ndiff(old, new))
    assert 0 < changed <= 5


def test_the_example_learns_through_flowers_own_loop(monkeypatch, tmp_path):
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path))
    app, server = (runpy.run_path(str(APP / "after" / name))["app"] for name in ("client.py", "server.py"))
    kept = {}

    class Federation(Nodes):
        def send_and_receive(self, messages, *, timeout=None):
            replies = []
            for message in messages:
                message.metadata.__dict__["_message_id"] = "m"
                node = message.metadata.dst_node_id
                reply = app(message, Context(1, node, {"partition-id": node}, RecordDict(), {}))
                reply.metadata.__dict__["_src_node_id"] = node
                assert list(reply.content) == ["update"]
                replies.append(reply)
            return replies

    monkeypatch.setattr("builtins.print", lambda *what: kept.setdefault("said", []).append(what[0]))
    server(Federation(100), Context(1, 0, {}, RecordDict(), {}))
    weights = kept["said"][-1]
    assert np.abs(weights - [1, 2, 3]).max() < 0.5
    assert any("In total over 20 rounds" in str(line) for line in kept["said"])


def test_unknown_names_say_what_there_is():
    assert dir(sordino.flower) == ["Private", "private_mod"]
    with pytest.raises(AttributeError, match="it has Private"):
        sordino.flower.Mod  # noqa: B018
