"""The Harmonizer as printed: statistics, scores and noise, one function at a time; then all of it in runs."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import kstest, laplace, norm
from torch import nn

import sordino
from sordino.cli.explain import explain
from sordino.core.errors import BudgetError
from sordino.core.message import together
from sordino.core.types import Batch
from sordino.methods.udp_fl import harmonizer
from sordino.methods.udp_fl import printed_harmonizer as printed
from sordino.methods.udp_fl.printed_harmonizer import NoiseRequest
from sordino.privacy.events import GaussianEvent, Repeated
from sordino.privacy.mechanisms.staircase import Staircase
from sordino.privacy.tightest import epsilon
from sordino.runs import loop
from support.methods import federation_of, play, price, rows
from support.problems import FEATURES, federation, job, linear
from support.udp import RNG, records, rounds_of

RUN = Repeated(GaussianEvent(1.0), 3)
EPSILON = {"high": 1.0, "moderate": 4.0, "low": 10.0}


def mixed(records=120):
    """Clients 0 and 2 have records of three features, 1 and 3 of all."""
    pairs = federation((records,) * 4)
    for k in (0, 2):
        pairs[k][0][:, 3:] = 0
    return pairs


def zero(width, outputs):
    layer = nn.Linear(width, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def found(clients):
    here = job(linear(), clients, method="udp-fl-paper")
    data = records(here, range(len(clients)))
    return here, printed.statistics(loop.begin(here).params, data, here.model, [0] * len(clients)).numpy()


# --- statistics


def naive(module, x, y):
    """Record by record, number by number."""
    each = []
    for one, label in zip(x[: printed.LOOKED], y[: printed.LOOKED], strict=True):
        module.zero_grad()
        nn.functional.cross_entropy(module(one[None]), label[None]).backward()
        each.append(np.concatenate([p.grad.numpy().astype(float).ravel() for p in module.parameters()]))
    mean = sum(each) / len(each)
    size = math.sqrt(sum(v * v for v in mean) / len(mean))
    near = sum(abs(v) <= 0.01 * size for v in mean) / len(mean)
    return near, sum((v / size) ** 4 for v in mean) / len(mean), max(math.sqrt(sum(v * v for v in g)) for g in each)


def test_the_statistics_are_those_of_a_naive_second_computation():
    clients = [*mixed()[:2], federation((7,), seed=3)[0]]
    here, rows = found(clients)
    for row, (x, y) in zip(rows, clients, strict=True):
        assert row == pytest.approx(naive(here.model.module, x, y), rel=1e-4)
    assert rows[0, 0] > 0.7 > 0.1 > rows[1, 0] and rows[0, 1] > 6 > rows[1, 1]
    assert rows[0] != pytest.approx(naive(here.model.module, *clients[1]), rel=0.1)  # the test can see the wrong client


@pytest.mark.parametrize(("small", "share"), [(0.008, 0.0), (0.006, 0.5)])
def test_next_to_zero_is_a_hundredth_of_the_root_mean_square(small, share):
    """Of one record the gradient of a linear model is the record: half ones, so a root mean square of 0.707."""
    x = torch.tensor([[1.0] * 10 + [small] * 10])
    here = job(nn.Linear(20, 1, bias=False), [(x, torch.ones(1))], "squared_error", method="udp-fl-paper")
    data = records(here, [0])
    ((sparsity, kurtosis, largest),) = printed.statistics(torch.zeros(20), data, here.model, [0]).tolist()
    assert sparsity == share and kurtosis == pytest.approx(2.0, rel=1e-3)
    assert largest == pytest.approx(2 * math.sqrt(10), rel=1e-3)


def test_only_the_first_records_are_looked_at():
    """Record 101 changes nothing, record 100 does."""
    clients = mixed()[:2]
    base = found(clients)[1]
    for at, same in ((printed.LOOKED, True), (printed.LOOKED - 1, False)):
        (x, y), other = clients
        x = x.clone()
        x[at] *= 50
        now = found([(x, y), other])[1]
        assert np.array_equal(now[0], base[0]) == same and np.array_equal(now[1], base[1])


def test_whatever_the_gradients_are_numbers_come_out():
    """Zeros, a single record, records that overflow: and no client spoils another."""
    clients = federation((5, 1, 6, 9))
    base = found(clients)[1]
    clients[0] = (0 * clients[0][0], clients[0][1])
    clients[2] = (clients[2][0] * 1e37, clients[2][1])
    rows = found(clients)[1]
    assert np.isfinite(rows).all() and np.array_equal(rows[[1, 3]], base[[1, 3]])
    layer = zero(FEATURES, 1)
    quiet = job(layer, [(torch.zeros(5, FEATURES), torch.zeros(5))], "squared_error", method="udp-fl-paper")
    nothing = records(quiet, [0])
    silent = printed.statistics(quiet.model.layout.read(layer), nothing, quiet.model, [0])
    assert silent.tolist() == [[1.0, 0.0, 0.0]] and printed.words(1.0, 0.0, 500, 20, 8, "measured") == []
    none = Batch(nothing.x[:0], nothing.y[:0], (0,))
    assert printed.statistics(quiet.model.layout.read(layer), none, quiet.model, [0]).tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("sparsity", "kurtosis", "word"),
    [(0.1, 3.0, "dense"), (0.6, 9.0, "sparse"), (0.1, 9.0, "complex"), (0.6, 3.0, "complex"), (0.5, 6.0, "sparse")],
)
def test_what_a_gradient_is_called(sparsity, kurtosis, word):
    assert printed.words(sparsity, kurtosis, 500, 20, 8, "measured") == [word]


def test_what_else_the_data_are_called():
    assert printed.words(0.1, 3.0, 99, 1000, 100, "time-series") == [
        "dense", "small", "high-dimensional", "large-pool", "time-series"
    ]  # fmt: skip
    assert printed.words(0.1, 3.0, 100, 999, 99, "measured") == ["dense"]
    assert printed.words(0.1, 3.0, 99, 1, 1, "small") == ["dense", "small"]
    for words in (["dense"], ["sparse", "small", "time-series"], []):
        assert sorted(printed.unpacked(printed.packed(words))) == sorted(words)


# --- scores


@pytest.mark.parametrize("row", harmonizer.TABLE, ids=" ".join)
def test_a_client_that_fits_a_row_of_table_2_gets_its_mechanism(row):
    word, need, compute, mechanism = row
    asked = NoiseRequest(RUN, EPSILON[need], 1e-5, resources=compute)
    assert asked.requirement == need and printed.rating(mechanism, [word], asked) == 1
    assert printed.choose(asked, [word]) == mechanism


def test_the_score_by_hand():
    asked = NoiseRequest(RUN, 4.0, 1e-5, "medical", "limited", 0.25)
    terms, scores = printed.terms(asked), printed.scores(asked, ["dense"])
    z = {name: t.scale for name, t in terms.items()}
    std = {
        "gaussian": z["gaussian"],
        "laplace": math.sqrt(2) * z["laplace"],
        "staircase": math.sqrt(Staircase(1 / z["staircase"]).variance(1.0)),
    }
    rated = {"gaussian": 1 / 3, "laplace": 2 / 3, "staircase": 1 / 3}  # dense; moderate and limited; moderate
    for name, t in terms.items():
        event = harmonizer.of(RUN, "1-d staircase" if name == "staircase" else name, z[name])
        assert 0.998 * 4 < epsilon(event, 1e-5) <= 4.0
        privacy, utility = min(1.0, 4 / epsilon(event, 1e-8)), min(std.values()) / std[name]
        assert (t.privacy, t.utility) == pytest.approx((privacy, utility), rel=2e-3)
        own = 0.5 * privacy + 0.4 * utility + 0.1 * harmonizer.SECONDS["gaussian"] / harmonizer.SECONDS[name]
        assert scores[name] == pytest.approx(0.75 * own + 0.25 * rated[name], rel=2e-3)
    assert printed.choose(asked, ["dense"]) == max(scores, key=scores.get)


def test_with_no_weight_for_the_table_the_data_do_not_matter():
    asked = NoiseRequest(RUN, 1.0, 1e-5, resources="limited", prior=0.0)
    assert printed.scores(asked, ["dense"]) == printed.scores(asked, ["sparse"])
    some = NoiseRequest(RUN, 1.0, 1e-5, resources="limited")
    assert printed.choose(some, ["dense"]) == "gaussian" and printed.choose(some, ["sparse"]) == "laplace"


def test_out_of_reach_is_one_error():
    with pytest.raises(BudgetError):
        printed.terms(NoiseRequest(Repeated(GaussianEvent(1.0), 9), 1e-9, 1e-12))


def test_a_scale_says_the_budget_it_was_calibrated_to():
    for name in printed.MECHANISMS:
        for budget in (0.5, 3.0, 8.0):
            z = harmonizer.calibrated(RUN, printed.leaf(name), budget, 1e-5)
            assert printed.claimed(RUN, name, z, 1e-5) == budget
            assert printed.claimed(RUN, name, 0.9 * z, 1e-5) > 1.05 * budget


# --- noise


def test_every_client_gets_the_noise_of_its_own_mechanism_scale_and_bound():
    kinds = [("laplace", 0.7, 2.0), ("staircase", 0.5, 0.3), ("gaussian", 1.5, 1.0), ("laplace", 0.3, 1.0)]
    names, scales, wide = zip(*kinds, strict=True)
    zeros, bounds = torch.zeros(4, 4000), torch.tensor(wide)[:, None]
    rows = printed.add_each(zeros, names, scales, bounds, RNG.rows(range(4)))
    for i, (name, z, bound) in enumerate(kinds):
        one = Staircase(1 / z)
        cdf = {
            "gaussian": norm(scale=z).cdf,
            "laplace": laplace(scale=z).cdf,
            "staircase": lambda x, s=one: s.cdf(x, 1.0),
        }
        noise = rows[i].numpy() / bound
        assert kstest(noise, cdf[name]).pvalue > 1e-3
        assert kstest(noise / 1.2, cdf[name]).pvalue < 1e-3  # a wrong scale
        assert kstest(noise, norm(scale=noise.std()).cdf).pvalue < 1e-3 or name == "gaussian"  # a wrong shape
        assert noise.std() == pytest.approx(printed.deviation(name, z), rel=0.1)
        alone = printed.add_each(zeros[:1], names[i : i + 1], scales[i : i + 1], bounds[i : i + 1], RNG.rows([i]))
        assert torch.equal(alone[0], rows[i])  # whoever else is there


# --- in a run


def harmonised(clients=None, **keys):
    keys = {"mechanism": "auto", "resources": "limited", "epsilon": 1.0} | keys
    return job(linear(), clients or mixed(), method="udp-fl-paper", **keys)


def test_clients_with_sparse_gradients_choose_otherwise_than_those_with_dense_ones():
    made = harmonised()
    states, _, _ = rounds_of(made)
    found = made.method.decided(states[-1], made.plan)
    own = found["clients"]
    assert [own[k]["mechanism"] for k in "0123"] == ["laplace", "gaussian", "laplace", "gaussian"]
    assert found["mechanisms"] == {"gaussian": 2, "laplace": 2, "staircase": 0}
    assert own["0"]["data"] == ["sparse"] and own["1"]["data"] == ["dense"] and own["0"]["requirement"] == "high"
    assert own["0"]["sparsity"] > 0.7 > 0.1 > own["1"]["sparsity"]
    assert max(own["0"]["scores"], key=own["0"]["scores"].get) == "laplace"
    assert own["0"]["round"] == 1 and own["0"]["before"] is None


def test_the_noise_is_that_of_what_was_chosen():
    """Rows with gradients taken out: Laplace at the sparse clients, Gaussian at the dense ones, at their own scales."""
    wide = [(torch.cat([x, torch.zeros(len(x), 1980)], dim=1), y) for x, y in federation((120,) * 2)]
    dense = [(torch.randn(120, 2000, generator=torch.Generator().manual_seed(1)), y) for _, y in wide]
    keys = {"method": "udp-fl-paper", "mechanism": "auto", "resources": "limited", "epsilon": 1.0, "clip": 0.5,
            "learning_rate": 1.0}  # fmt: skip
    made = job(zero(2000, 3), [wide[0], dense[0], wide[1], dense[1]], **keys)
    state, data = loop.begin(made), records(made, range(4))
    clean = made.model.gradients.sums(state.params, data, 0.5) / 120
    noise = ((rows(made, rng=RNG) + clean) * 120 / 0.5).numpy()
    asked = NoiseRequest(made.method._run(made.plan), 1.0, 1e-5)
    scales = {name: t.scale for name, t in printed.terms(asked).items()}
    for k, (one, name) in enumerate(zip(noise, ["laplace", "gaussian"] * 2, strict=True)):
        law = {"laplace": laplace, "gaussian": norm}[name]
        other = {"laplace": norm, "gaussian": laplace}[name]
        assert kstest(one, law(scale=scales[name]).cdf).pvalue > 1e-3
        assert kstest(noise[k % 2 :: 2].flatten(), law(scale=1.1 * scales[name]).cdf).pvalue < 1e-3
        assert kstest(one, other(scale=other.fit(one)[1]).cdf).pvalue < 1e-3
    after = play(made, rng=RNG).after
    assert made.method.decided(after, made.plan)["std"] == pytest.approx(noise.std(axis=1).mean() * 0.5 / 120, rel=0.03)


def test_a_client_clips_at_the_sensitivity_it_measured():
    """S_k: held below the clip, and above a hundredth of it; noise follows."""
    scale = {name: t.scale for name, t in printed.terms(harmonised().method._asked(harmonised().plan, [0])[0]).items()}
    for clip, held in ((0.1, lambda s: 0.1), (20.0, lambda s: s), (1e5, lambda s: 1e3)):
        made = harmonised(clip=clip)
        found = made.method.decided(rounds_of(made)[0][-1], made.plan)["clients"]
        for own in found.values():
            assert 0.2 < own["sensitivity"] < 20.0
            assert own["scale"] == pytest.approx(scale[own["mechanism"]] * held(own["sensitivity"]), rel=1e-5)
    wild = federation((120,) * 4)
    wild[0][0][110] *= 1e4  # not among the records that are looked at: clipped like all others
    made = harmonised(wild, clip=20.0)
    tame = harmonised(federation((120,) * 4), clip=20.0)
    far = (rows(made, rng=RNG) - rows(tame, rng=RNG))[0].norm()
    most = made.method.decided(rounds_of(made)[0][-1], made.plan)["clients"]["0"]["sensitivity"]
    assert 0.01 * most < float(far) * 120 / 0.1 <= 2.001 * most  # one record out, one in; learning rate 0.1


def test_the_loss_that_q_fedavg_asks_for_has_noise_of_its_own_bound():
    """Its cap, not what the gradients were clipped at."""
    made = harmonised(clip=1e-3, algorithm="q-fedavg")
    heard, dim = [], made.plan.dim
    cap, add = made.plan.algorithm.loss_clip, printed.add_each

    def listening(value, names, scales, bounds, rng):
        heard.append((value.shape[1], bounds.flatten().tolist()))
        return add(value, names, scales, bounds, rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printed, "add_each", listening)
        rows(made, rng=RNG)
    assert dict(heard) == {1: [cap] * 4, dim: pytest.approx([1e-3] * 4)}


def test_changing_one_clients_data_changes_its_row_alone():
    other = mixed()
    other[1] = mixed()[0]  # the dense client becomes sparse
    before, after = play(harmonised(), rng=RNG).sent, play(harmonised(other), rng=RNG).sent
    for name in ("update", "choice"):
        same = [torch.allclose(a, b, atol=1e-6) for a, b in zip(before[name], after[name], strict=True)]
        assert same == [True, False, True, True]


def test_the_cohort_is_every_client_by_itself_and_chunks_change_nothing():
    made = harmonised(batch_rate=0.5, local_steps=2, budgets="1:0.5,9:0.5", epsilon=9.0)
    whole = play(made, rng=RNG).sent
    others = [play(made, federation=federation_of(made, memory_gb=gb, rng=RNG), rng=RNG).sent for gb in (1e-9, 2e-5)]
    for other in (*others, together([play(made, [k], rng=RNG).sent for k in range(4)])):
        for name, value in whole.fields.items():
            assert torch.allclose(other[name].double(), value.double(), atol=1e-5)


@pytest.mark.parametrize(("reselect", "rounds"), [(0, [1, 1, 1, 1, 1]), (1, [1, 2, 3, 4, 5]), (2, [1, 1, 3, 3, 5])])
def test_a_choice_is_kept_until_it_is_time(reselect, rounds):
    made = harmonised(reselect=reselect, rounds=5)
    states = rounds_of(made, 5)[0]
    found = [made.method.decided(s, made.plan)["clients"] for s in states[1:]]
    assert [own["0"]["round"] for own in found] == rounds
    changed = [a["0"]["kurtosis"] != b["0"]["kurtosis"] for a, b in pairwise(found)]
    assert changed == [a != b for a, b in pairwise(rounds)]
    assert {own["0"]["before"] for own in found} <= {None, *printed.MECHANISMS}


def test_who_comes_late_chooses_in_the_first_round_that_it_takes_part_in():
    made = harmonised()
    states, sent, here = rounds_of(made, 2, ([0, 1], [1, 2]))
    found = made.method.decided(states[-1], made.plan)["clients"]
    assert {k: own["round"] for k, own in found.items()} == {"1": 1, "2": 2}
    nobody = play(made, [], states[-1], here, RNG)
    assert {k: v.shape[1:] for k, v in nobody.sent.fields.items()} == {
        k: v.shape[1:] for k, v in sent[0].fields.items()
    }
    assert torch.equal(nobody.after.params, states[-1].params)
    assert made.method.decided(nobody.after, made.plan)["clients"] == {}


def test_with_a_choice_by_private_gradients_nothing_holds():
    made = harmonised()
    assert math.isinf(made.promise.epsilon) and "exact statistics of its private gradients" in made.promise.reason
    claim = made.method.claim(made.plan)
    assert (claim.epsilon, claim.delta) == (1.0, 1e-5) and "does not hold" in claim.sentence()
    assert math.isinf(epsilon(price(made.method, replace(made.plan, dim=1))[0].event, 1e-5))


def test_requirements_follow_the_clients_own_budgets_and_profiles():
    made = harmonised(budgets="1:0.5,9:0.5", epsilon=9.0, profile="medical:0.5,iot:0.5", data="time-series")
    found = made.method.decided(rounds_of(made)[0][-1], made.plan)["clients"]
    low = max(made.plan.multipliers)
    for k, own in found.items():
        poor = made.plan.multipliers[int(k)] == low
        assert (own["epsilon"], own["requirement"]) == ((1.0, "high") if poor else (9.0, "low"))
        assert own["profile"] == ("medical" if int(k) < 2 else "iot") and own["data"][-1] == "time-series"


def test_gradients_of_zero_leave_some_noise():
    zeros = [(torch.zeros(120, FEATURES), torch.zeros(120)) for _ in range(3)]
    made = job(zero(FEATURES, 1), zeros, "squared_error", method="udp-fl-paper", mechanism="auto", clip=5.0)
    done = play(made, rng=RNG)
    state, sent = done.after, done.sent["update"]
    for own in made.method.decided(state, made.plan)["clients"].values():
        assert own["data"] == [] and own["sensitivity"] == 0
    assert torch.isfinite(sent).all() and bool((sent != 0).all())
    assert "no gradient" in made.method.explain([{"round": 1, "decided": made.method.decided(state, made.plan)}])[1]


def test_it_learns_by_whatever_noise():
    made = harmonised(federation((200,) * 4), epsilon=50.0, reselect=1)
    data, losses = records(made, range(4)), []
    for state in rounds_of(made, 10)[0]:
        losses.append(float(made.model.loss(loop.trained(made, state.params)(data.x), data.y).mean().detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_the_choice_is_explained(tmp_path):
    keys = {"epsilon": 1.0, "rounds": 3, "resources": "limited", "learning_rate": 0.1, "mechanism": "auto"}
    run = sordino.train(linear(), mixed(), method="udp-fl-paper", out=str(tmp_path), name="a", seed=0, **keys)

    def told(*args):
        found = CliRunner().invoke(explain, [str(run.folder), "--owner", *args], catch_exceptions=False)
        assert found.exit_code == 0
        return found.output

    text = told()
    assert "Round 1: noise of the clients: gaussian 2, laplace 2; 4 chose by their own gradients" in text
    assert "Client 0 (sparse: " in text and "Client 1 (dense: " in text and "Client 3" not in text
    assert "It does not hold: each client chooses its mechanism" in text and "epsilon is infinite" in text
    one = told("--client", "3")
    assert "Client 3 (dense: " in one and "chose gaussian in round 1: score " in one and "Client 0" not in one
    assert "noise of the clients" not in one  # said of all of them
    records = [json.loads(line) for line in (run.folder / "private" / "records.jsonl").read_text().splitlines()]
    assert [r["decided"]["mechanisms"]["laplace"] for r in records] == [2, 2, 2]
