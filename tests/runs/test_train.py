"""`sordino.train` from the outside."""

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

import sordino
from sordino.core.errors import BudgetError, SordinoError, SpecError
from sordino.core.types import State
from sordino.data.clients import LazyClients
from sordino.runs import loop
from support.problems import federation, held_out, job, linear, mlp, same_weights

PRIVATE = ("dp-sgd", "dp-fedavg")


def train(tmp_path, module=None, clients=None, **keys):
    keys = {"mode": "research", "rounds": 3, "learning_rate": 0.5, "out": str(tmp_path), "device": "cpu"} | keys
    return sordino.train(module or mlp(), federation() if clients is None else clients, test=held_out(), **keys)


def test_four_kinds_of_data_give_one_result(tmp_path):
    pairs = federation()
    results = [
        train(tmp_path, clients=clients)
        for clients in (
            pairs,
            [(x.numpy(), y.numpy()) for x, y in pairs],
            [(pd.DataFrame(x.numpy().copy()), pd.Series(y.numpy().copy())) for x, y in pairs],
            [TensorDataset(x, y) for x, y in pairs],
        )
    ]
    for other in results[1:]:
        assert same_weights(other.model, results[0].model)
        assert other.guarantee == results[0].guarantee


@pytest.mark.parametrize("method", [*PRIVATE, "none"])
def test_a_seed_repeats_bit_for_bit_and_another_does_not(method, tmp_path):
    once, again, other = (train(tmp_path, method=method, local_steps=2, seed=s) for s in (5, 5, 6))
    assert same_weights(once.model, again.model)
    assert [r.loss for r in once.history] == [r.loss for r in again.history]
    if method != "none":  # with full batches there is nothing random in it
        assert not same_weights(once.model, other.model)
        assert once.guarantee == other.guarantee


@pytest.mark.parametrize("method", PRIVATE)
def test_a_secure_run_is_never_the_same_twice(method, tmp_path):
    one, two = (train(tmp_path, method=method, mode="secure") for _ in range(2))
    assert not same_weights(one.model, two.model)
    assert one.guarantee.mode == "secure" and one.guarantee.epsilon <= 2.0
    assert "seed" not in one.guarantee.sentence()
    assert "key" not in (one.folder / "public" / "plan.json").read_text().lower()


def test_training_learns_and_the_module_one_brought_stays(tmp_path):
    module = mlp()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    clients = federation((40,) * 10)
    result = train(tmp_path, module, clients, method="dp-sgd", epsilon=8.0, rounds=20)
    assert result.accuracy > 0.8 and result.history[0].loss > result.history[-1].loss
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_epsilon_grows_by_the_round_and_ends_below_the_budget(tmp_path):
    for method in PRIVATE:
        result = train(tmp_path, method=method, rounds=6, epsilon=2.5)
        spent = [r.epsilon[result.guarantee.viewer] for r in result.history]
        assert all(a < b for a, b in itertools.pairwise(spent))
        assert spent[-1] == result.guarantee.epsilon <= 2.5 and spent[-1] > 0.99 * 2.5


@pytest.mark.slow
def test_epsilon_grows_by_the_round_under_sampling_too(tmp_path):
    """On the way by a coarse grid, at the end by a fine one: still never falling, never above the budget."""
    keys = {"client_rate": 0.5, "rounds": 8, "epsilon": 2.0, "method": "dp-fedavg"}
    result = train(tmp_path, **keys)
    spent = [r.epsilon["public"] for r in result.history]
    assert all(a < b for a, b in itertools.pairwise(spent)) and spent[-1] <= 2.0
    assert all(math.isinf(r.epsilon["server"]) for r in result.history)


def test_fedavg_is_infinite(tmp_path):
    result = train(tmp_path, method="none")
    assert math.isinf(result.guarantee.epsilon) and "No guarantee" in result.guarantee.sentence()
    assert all(math.isinf(r.epsilon["server"]) for r in result.history)


def test_a_budget_nobody_can_meet_is_refused(tmp_path):
    with pytest.raises(BudgetError, match="reaches epsilon"):
        train(tmp_path, epsilon=1e-9, delta=1e-15)
    with pytest.raises(BudgetError, match="viewer = public"):
        train(tmp_path, method="dp-fedavg", viewer="server")
    assert not list(tmp_path.iterdir())


def test_the_cap_on_participations_is_kept_and_paid_for(tmp_path):
    """Against the server a cap of two costs two participations, however many rounds there are."""
    keys = {"method": "dp-sgd", "max_participations": 2, "epsilon": 2.0}
    result = train(tmp_path, rounds=5, **keys)
    assert [r.clients for r in result.private.history] == [8, 8, 0, 0, 0]
    assert result.guarantee.epsilon <= 2.0
    two = train(tmp_path, rounds=2, method="dp-sgd", epsilon=2.0)
    plans = [json.loads((r.folder / "public" / "plan.json").read_text()) for r in (result, two)]
    assert plans[0]["noise_multiplier"] == pytest.approx(plans[1]["noise_multiplier"], rel=1e-6)


@pytest.mark.slow
def test_rounds_in_which_nobody_comes_are_rounds(tmp_path):
    result = train(tmp_path, method="dp-fedavg", clients=federation((12,) * 3), client_rate=0.2, rounds=6)
    assert 0 in [r.clients for r in result.private.history] and len(result.history) == 6
    assert all(np.isfinite(r.loss) for r in result.history)
    quiet = train(tmp_path, method="none", clients=federation((12,) * 3), client_rate=0.05, rounds=6)
    assert 0 in [r.clients for r in quiet.private.history]


def test_a_client_of_one_record_trains(tmp_path):
    for method in (*PRIVATE, "none"):
        result = train(tmp_path, method=method, clients=federation((1, 12, 3)))
        assert all(torch.isfinite(p).all() for p in result.model.parameters())


def test_regression_and_ones_own_loss(tmp_path):
    clients = [(x, x[:, :1].clone()) for x, _ in federation()]
    keys = {"rounds": 2, "out": str(tmp_path), "device": "cpu", "seed": 0}
    test = clients[0]
    model = torch.nn.Linear(20, 1)
    named = sordino.train(model, clients, loss="squared_error", test=test, **keys)
    default = sordino.train(model, clients, test=test, **keys)
    own = sordino.train(model, clients, loss=lambda p, t: (p - t).square().mean(dim=1), test=test, **keys)
    assert same_weights(named.model, default.model) and named.accuracy is None
    assert torch.allclose(own.model.weight, named.model.weight, atol=1e-5)
    with pytest.raises(SpecError, match="loss must be one of"):
        sordino.train(model, clients, loss="hinge", **keys)


def test_without_test_data_nothing_is_evaluated(tmp_path):
    result = sordino.train(mlp(), federation(), rounds=2, out=str(tmp_path), device="cpu")
    assert result.accuracy is None and [r.loss for r in result.history] == [None, None]


def test_a_function_may_make_the_model_and_a_watcher_sees_every_round(tmp_path):
    seen = []
    result = train(tmp_path, lambda: linear(), watch=lambda record: seen.append(record.round))
    assert seen == [1, 2, 3] and isinstance(result.model, torch.nn.Linear)


def test_averaging_is_the_mean_of_the_last_models(tmp_path):
    """Post-processing: the models of rounds 3 and 4 of 4, at the same epsilon."""
    plain, averaged = (train(tmp_path, rounds=4, seed=1, averaging=kind) for kind in ("none", "tail:0.5"))
    assert plain.guarantee == averaged.guarantee and not same_weights(plain.model, averaged.model)
    made = job(method="dp-sgd", rounds=4, averaging="tail:0.5")
    state = State(torch.zeros(3), average=torch.zeros(3))
    for done in range(4):
        state = loop._average(made, State(torch.full((3,), 1.0 + done), done, average=state.average))
    assert torch.allclose(state.model, torch.full((3,), 3.5))


@pytest.mark.parametrize(
    ("averaging", "weights"),
    [
        ("polynomial:2", [t * (t + 1) / 2 for t in (1, 2, 3, 4)]),  # Shamir and Zhang's: C(t + p - 1, p)
        ("ema:0.15", [0.9 * 0.15**3, 0.85 * 0.15**2, 0.85 * 0.15, 0.85]),  # the first with the short decay of 1/10
    ],
)
def test_averages_weigh_the_rounds_as_they_say(averaging, weights):
    made = job(method="dp-sgd", rounds=4, averaging=averaging)
    state = State(torch.zeros(4), average=torch.zeros(4))
    for done in range(4):
        state = loop._average(made, State(torch.eye(4)[done], done, average=state.average))
    expected = torch.tensor(weights)
    if averaging.startswith("poly"):
        expected = expected / expected.sum()
    assert torch.allclose(state.model, expected, atol=1e-6)


def test_results_are_on_file(tmp_path):
    result = train(tmp_path, name="it")
    assert result.folder == tmp_path / "it"
    fresh = mlp(seed=9)
    fresh.load_state_dict(load_file(result.folder / "public" / "model.safetensors"))
    assert same_weights(fresh, result.model)
    stored = json.loads((result.folder / "public" / "result.json").read_text())
    assert stored["guarantee"]["epsilon"] == result.guarantee.epsilon and stored["accuracy"] == result.accuracy


def test_unknown_keys_are_refused_as_in_a_file(tmp_path):
    with pytest.raises(SordinoError, match="Did you mean 'epsilon'"):
        train(tmp_path, epsilom=1.0)


@pytest.mark.parametrize("key", ["dataset", "data_dir", "features", "baseline"])
def test_what_belongs_to_the_command_is_refused(key, tmp_path):
    with pytest.raises(SpecError, match=f"{key} belongs to `sordino run`"):
        train(tmp_path, **{key: True if key == "baseline" else "mnist"})


def test_the_callers_model_stays_as_it_is(tmp_path):
    model = mlp()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = sordino.train(model, federation(), method="none", rounds=1, out=str(tmp_path), device="cpu")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert result.model is not model
    assert not all(torch.equal(v, before[k]) for k, v in result.model.state_dict().items())


def test_the_public_names_are_those_and_no_other():
    for name in sordino.__all__:
        assert getattr(sordino, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sordino.nothing
    assert sordino.LazyClients is LazyClients


MILLION = """
import resource, sys, tempfile, torch, sordino
def make(i):
    g = torch.Generator().manual_seed(i)
    return torch.randn(50, 20, generator=g), torch.randint(0, 3, (50,), generator=g)
def run(count, rate):
    clients = sordino.LazyClients(count, 50, make)
    return sordino.train(torch.nn.Linear(20, 3), clients, method="dp-sgd", viewer="server", rounds=3, epsilon=4.0,
                         client_rate=rate, out=tempfile.mkdtemp(), device="cpu", max_participations=1, seed=0)
run(100, 0.1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = run(1_000_000, 1e-5)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print([r.clients for r in result.private.history], grown, result.guarantee.epsilon)
assert 0 < sum(r.clients for r in result.private.history) < 100
assert grown < 300, grown
assert result.guarantee.epsilon <= 4.0
"""


@pytest.mark.slow
def test_a_million_clients_fit(tmp_path):
    """Memory is for the cohort; all data at once would be four gigabytes."""
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
