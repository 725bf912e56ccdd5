from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

import sordino
from sordino.core.errors import DataError, SpecError
from sordino.core.message import Message
from sordino.data.clients import ArrayClients, adopt
from sordino.methods import fedsdp_paper
from sordino.methods._claims import fedsdp_std
from sordino.methods.fedsdp_paper import SCORED, FedSdpPaper
from sordino.privacy.events import NonPrivate
from sordino.runs import loop
from sordino.runs.prepare import with_tags
from support.methods import CPU, federation_of, play, price
from support.problems import federation, job, linear
from support.silent import zero_clients, zero_layer

SIZES = (40, 25, 30)
QUIET = {"epsilon": 1e9}  # the formula's noise, next to none


def hard(sizes=SIZES):
    """Three classes that overlap, so that accuracies are neither 0 nor 1."""
    draw = torch.Generator().manual_seed(3)
    return [(x + 5 * torch.randn(x.shape, generator=draw), y) for x, y in federation(sizes)]


def tagged(pairs, groups=1, without=()):
    held = adopt(pairs)
    sizes = held.all_sizes().tolist()
    tags = [np.arange(n) % (groups + 1) * (k not in without) for k, n in enumerate(sizes)]
    return with_tags(held, tags)


def made(module=None, clients=None, groups=1, without=(), **keys):
    clients = clients or tagged(hard(), groups, without)
    return job(module, clients, method="fedsdp-paper", groups=groups, **keys)


def sent(here, state=None, clients=None):
    """What leaves the clients: moves, and what was found out, by name."""
    federation = federation_of(here, clients=clients)
    message = federation.ask("train", state or loop.begin(here), range(here.plan.population))
    found = {name: message[name].tolist() for name in ("ratio", "std")} | {"client": message.ids.tolist()}
    scores = dict(zip(SCORED, message["accuracy"].T.tolist(), strict=True))
    return message["update"], found | scores | {"shares": message["shares"]}


# --- the contribution, Eq. (2) to (4)


def by_hand(here, client, keep, steps, clip):
    """Full-batch gradient descent on some records of a client, written out."""
    module = loop.trained(here, loop.begin(here).params)
    data = here.federation.data.fetch([client], CPU)
    for _ in range(steps):
        module.zero_grad()
        nn.functional.cross_entropy(module(data.x[keep]), data.y[keep]).backward()
        g = torch.cat([p.grad.flatten() for p in module.parameters()])
        scale = min(1.0, clip / float(g.norm()))
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.5 * scale * p.grad
    return module


@pytest.mark.parametrize("empty", [False, True])
def test_contribution_and_noise_of_a_hand_written_round(empty):
    keys = {"local_steps": 4, "learning_rate": 0.5, "gradient_clip": 0.6, "held_out": 0.25, "empty_value": empty}
    here = made(linear(), **keys)
    told = sent(here)[1]
    for client, n in enumerate(SIZES):
        data = here.federation.data.fetch([client], CPU)
        tags, held = data.tags.numpy(), np.zeros(n, bool)
        for g in (0, 1):
            place = np.flatnonzero(tags == g)
            held[place[len(place) - int(0.25 * len(place)) :]] = True

        def accuracy(module, on=held, data=data):
            return float((module(data.x[on]).argmax(1) == data.y[on]).float().mean())

        parts = (~held, ~held & (tags == 1), ~held & (tags == 0))
        c, c_p, c_u = (accuracy(by_hand(here, client, torch.from_numpy(p), 4, 0.6)) for p in parts)
        c_0 = accuracy(loop.trained(here, loop.begin(here).params))
        v_0 = c_0 if empty else 0.0
        ratio = min(max((c - c_u + c_p - v_0) / (2 * (c - v_0)), 0), 1) if c > v_0 else 0.5
        found = [told[name][client] for name in ("all", "private", "general", "received", "ratio")]
        assert found == pytest.approx([c, c_p, c_u, c_0, ratio], abs=1e-5)
        assert told["std"][client] == pytest.approx(
            2 * 20 / (~held).sum() * math.sqrt(ratio + 2 * math.log(1e5)) / here.plan.epsilon, rel=1e-5
        )
        assert told["client"][client] == client
    assert len({round(r, 4) for r in told["ratio"]}) > 1


@pytest.mark.parametrize(
    ("scores", "empty", "ratio"),
    [
        ((0.8, 0.6, 0.7, 0.5), False, 0.4375),  # THEORY 4.1: c, c_p, c_u, v(0)
        ((0.8, 0.6, 0.7, 0.5), True, 1 / 3),
        ((0.6, 0.2, 0.9, 0.5), False, 0.0),  # -0.083, clamped
        ((0.6, 0.9, 0.1, 0.0), False, 1.0),
        ((0.0, 0.0, 0.0, 0.0), False, 0.5),  # undefined as printed
        ((0.4, 0.3, 0.3, 0.5), True, 0.5),  # training made it worse: no shares of a loss
    ],
)
def test_the_ratio_of_given_accuracies(monkeypatch, scores, empty, ratio):
    here = made(empty_value=empty)
    calls = iter((scores[3], scores[0]))  # received, all; then by coalition

    def given(weights, data, model):
        return np.full(len(data.sizes), next(calls))

    monkeypatch.setattr(fedsdp_paper, "_accuracies", given)
    by_size = {"private": scores[1], "general": scores[2]}
    original = fedsdp_paper._of

    def of(data, players):
        nonlocal calls
        if players in (frozenset({0}), frozenset({1})):
            calls = iter([by_size["general" if 0 in players else "private"]] * 9)
        return original(data, players)

    monkeypatch.setattr(fedsdp_paper, "_of", of)
    told = sent(here)[1]
    assert told["ratio"] == pytest.approx([ratio] * 3, abs=1e-6)


def test_what_is_held_out_is_the_same_in_every_round_and_of_every_group():
    here = made(groups=2, held_out=0.3)
    data = here.federation.data.fetch(range(3), CPU)
    seen, checked = here.method._split(data)
    assert [len(part.y) for part in (seen, checked)] == [sum(SIZES) - sum(checked.sizes), sum(checked.sizes)]
    for k, n in enumerate(SIZES):
        for g in range(3):
            mine = int((np.arange(n) % 3 == g).sum())
            here_, there = (int((p.tags[sum(p.sizes[:k]) : sum(p.sizes[: k + 1])] == g).sum()) for p in (seen, checked))
            assert there == int(0.3 * mine) and here_ == mine - there
    again = here.method._split(data)[1]
    assert torch.equal(again.x, checked.x) and len(again.y) > 0
    together = {row.numpy().tobytes() for p in (seen, checked) for row in p.x}
    assert len(together) == sum(SIZES)  # nothing twice


def test_a_client_too_small_to_hold_any_out_is_validated_on_what_it_has():
    clients = with_tags(adopt(federation((2, 30))), [[0, 1], np.arange(30) % 2])
    seen, checked = FedSdpPaper()._split(clients.fetch([0, 1], CPU))
    assert seen.sizes == (2, 24) and checked.sizes == (2, 6)


def on_the_server(**keys):
    """A job whose clients train on all of their records and validate on those of the server."""
    return made(validate_on="server", server_data=0.3, local_steps=3, learning_rate=0.5, **keys)


def test_with_validation_records_of_the_server_everything_else_is_trained_on():
    here = on_the_server(gradient_clip=0.6)
    told, shared = sent(here)[1], here.plan.public.batch
    assert sum(here.federation.data.all_sizes()) + len(shared.y) == sum(SIZES) and len(shared.y) > 10
    for client, n in enumerate(here.federation.data.all_sizes()):
        tags = here.federation.data.fetch([client], CPU).tags
        c, c_p, c_u = (
            float((by_hand(here, client, keep, 3, 0.6)(shared.x).argmax(1) == shared.y).float().mean())
            for keep in (tags >= 0, tags == 1, tags == 0)
        )
        ratio = min(max((c - c_u + c_p) / (2 * c), 0), 1)
        assert [told[name][client] for name in ("all", "private", "general")] == pytest.approx([c, c_p, c_u], abs=1e-5)
        assert told["ratio"][client] == pytest.approx(ratio, abs=1e-5)
        assert told["std"][client] == pytest.approx(fedsdp_std(20, n, here.plan.epsilon, 1e-5, ratio), rel=1e-5)
    assert len(set(told["all"])) > 1 and len(set(told["received"])) == 1  # one set of records for all
    held = made(server_data=0.3, local_steps=3, learning_rate=0.5)  # a fifth of the same records is held out
    assert all(a > b for a, b in zip(sent(held)[1]["std"], told["std"], strict=True))


def test_the_servers_records_are_there_in_every_round():
    here = on_the_server(without=(1,))
    state, start = loop.begin(here), loop.begin(here).method
    for cohort in (None, [], [0, 2]):
        state = play(here, cohort, state).after
        assert torch.equal(state.method.x, start.x) and torch.equal(state.method.y, start.y)
    assert state.method.clients.tolist() == [0, 2] and state.method.ratio[0] > 0
    assert here.method.decided(play(here, [], state).after, here.plan) is None
    with pytest.raises(SpecError, match="set server_data"):
        loop.begin(made(validate_on="server"))
    with pytest.raises(SpecError, match="validate_on"):
        FedSdpPaper(validate_on="test")
    assert not any("makes no use" in note for note in here.notes)
    assert any("makes no use" in note for note in made(server_data=0.3).notes)


def test_a_resumed_run_still_has_the_servers_records(tmp_path):
    class Died(BaseException):
        pass

    def dies(view, *rest):
        raise Died

    tags = [np.arange(n) % 2 for n in SIZES]
    keys = {"method": "fedsdp-paper", "rounds": 2, "learning_rate": 0.5, "seed": 2, "device": "cpu", "epsilon": 5.0}
    keys |= {"validate_on": "server", "server_data": 0.3, "checkpoint_seconds": 0.0, "out": str(tmp_path)}
    through = sordino.train(linear(), hard(), private_data=tags, name="a", **keys)
    with pytest.raises(Died):
        sordino.train(linear(), hard(), private_data=tags, name="b", observe=dies, **keys)
    again = sordino.train(linear(), hard(), private_data=tags, resume=tmp_path / "b")
    assert torch.equal(again.model.weight, through.model.weight) and len(again.history) == 2
    assert any("held by the server and count as public" in note for note in through.notes)


def test_training_pictures_are_augmented_and_validation_pictures_are_not():
    draw = torch.Generator().manual_seed(1)
    pairs = [(torch.rand(n, 1, 8, 8, generator=draw), torch.arange(n) % 3) for n in SIZES]
    found = []
    for augment in ("none", "flip-crop", "flip-crop"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        found.append(sent(made(module, tagged(pairs), augment=augment, local_steps=3, learning_rate=0.5, **QUIET)))
    (plain, told), (moved, said), (again, _) = found
    assert said["received"] == told["received"] and torch.equal(moved, again)
    assert not torch.allclose(moved, plain, atol=1e-3)


def test_several_groups_share_out_the_whole():
    here = made(groups=2, local_steps=3, learning_rate=0.5)
    told = sent(here)[1]
    assert torch.allclose(told["shares"].sum(dim=1), torch.ones(3).double(), atol=1e-5)
    assert told["ratio"] == pytest.approx(told["shares"][:, 1:].sum(dim=1).clamp(0, 1).tolist(), abs=1e-5)
    many = made(groups=2, local_steps=3, learning_rate=0.5, permutations=1500)
    sampled = sent(many)[1]["shares"]
    assert torch.allclose(sampled, told["shares"], atol=0.07) and not torch.equal(sampled, told["shares"])
    five = made(clients=tagged(hard(), 4), groups=4)  # beyond four players orders are drawn
    assert torch.allclose(sent(five)[1]["shares"].sum(dim=1), torch.ones(3).double(), atol=1e-5)


def test_clients_without_private_records_have_no_private_contribution():
    here = made(without=(1,), local_steps=2)
    moved, told = sent(here)
    assert told["ratio"][1] == 0 and told["ratio"][0] > 0
    assert told["std"][1] == pytest.approx(fedsdp_std(20, 20, here.plan.epsilon, 1e-5, 0.0), rel=1e-5)
    spared = replace(here, method=replace(here.method, curious_noise=False))
    silent, said = sent(spared)
    assert said["std"][1] == 0 and torch.equal(silent[[0, 2]], moved[[0, 2]])
    assert float(silent[1].norm()) < 0.1 * float(moved[1].norm())  # its weights as they are


def test_a_client_whose_records_are_all_private_has_the_whole_contribution():
    clients = tagged(hard())
    clients.tags[:40] = 1
    assert sent(made(clients=clients, local_steps=3))[1]["ratio"][0] == 1


# --- the noise, Eq. (5) and (6), and why it protects nobody


def test_the_noise_has_the_printed_scale():
    layer, zeros = zero_layer(4000), tagged(zero_clients(4000, SIZES))
    here = job(layer, zeros, "squared_error", method="fedsdp-paper", clip=0.5, epsilon=0.7)
    moved, told = sent(here)
    trained = (32, 21, 24)  # records, of 40, 25, 30
    stds = [2 * 0.5 * math.sqrt(0.5 + 2 * math.log(1e5)) / (0.7 * n) for n in trained]
    assert told["std"] == pytest.approx(stds, rel=1e-4)
    noise = (moved / torch.tensor(stds)[:, None]).flatten().numpy()
    assert kstest(noise, norm().cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1).cdf).pvalue < 1e-3 and kstest(noise, norm(scale=0.9).cdf).pvalue < 1e-3
    floor = job(layer, zeros, "squared_error", method="fedsdp-paper", clip=0.5, epsilon=0.7, tolerance_floor=90.0)
    assert sent(floor)[1]["std"][0] == pytest.approx(2 * 0.5 * math.sqrt(90) / (0.7 * 32), rel=1e-4)


def test_weights_are_clipped_not_moves():
    module = linear()
    with torch.no_grad():
        module.weight += 5.0
    here = made(module, clip=2.0, **QUIET)
    state = loop.begin(here)
    moved, _ = sent(here, state)
    assert torch.allclose((state.params + moved).norm(dim=1), torch.full((3,), 2.0), atol=1e-4)
    after = here.method.merge(state, weighted(here, moved), here.plan)
    assert float(after.params.norm()) <= 2.0 + 1e-4
    each = made(module, clip=2.0, clip_by="coordinate", **QUIET)
    weights = loop.begin(each).params + sent(each, loop.begin(each))[0]
    assert float(weights.abs().max()) <= 2.0 + 1e-4 and float(weights.norm(dim=1).min()) > 2 * 2.0


def weighted(here, moved):
    ones = torch.ones(3, dtype=torch.float64)
    remarks = {"ratio": ones, "std": ones, "accuracy": ones[:, None].expand(3, 4)}
    remarks |= {"shares": ones[:, None].expand(3, here.method.groups + 1)}
    return Message({"update": moved} | remarks, torch.tensor(SIZES, dtype=torch.float32), np.arange(3))


def test_the_server_takes_the_mean_of_the_weights_by_records():
    here = made(**QUIET)
    state = loop.begin(here)
    moved, _ = sent(here, state)
    after = here.method.merge(state, weighted(here, moved), here.plan)
    mean = sum(n * (state.params + row) for n, row in zip(SIZES, moved, strict=True)) / sum(SIZES)
    assert torch.allclose(after.params, mean, atol=1e-5)
    assert not torch.allclose(after.params, state.params + moved.mean(dim=0), atol=1e-6)


def test_with_next_to_no_noise_it_learns():
    here = made(learning_rate=0.5, local_steps=3, **QUIET)
    x, y, state = here.federation.data.x, here.federation.data.y, loop.begin(here)

    def loss(state):
        return float(here.model.loss(loop.trained(here, state.params)(x), y).mean().detach())

    first = loss(state)
    for _ in range(6):
        state = play(here, state=state).after
    assert loss(state) < 0.6 * first


def test_one_record_moves_the_clipped_weight_by_500_times_what_is_claimed():
    """THEORY 4.3: least squares in one weight, 500 records trained on, batches of 50, two passes, C = 1."""

    def weight(sign):
        x, y = torch.zeros(625, 1), torch.zeros(625)
        x[0, 0], y[0] = 5.0, sign * 100.0
        clients = ArrayClients(x, y, [625], tags=torch.zeros(625, dtype=torch.int64))
        layer = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(layer.weight)
        keys = {"epsilon": 1.0, "clip": 1.0, "batch_size": 50, "local_epochs": 2.0, "learning_rate": 0.1}
        here = job(layer, clients, "squared_error", method="fedsdp-paper", **keys)
        moved, told = sent(here)
        assert told["std"][0] == pytest.approx(fedsdp_std(1.0, 500, 1.0, 1e-5, 0.0), rel=1e-5)
        return float(moved[0, 0]), told["std"][0]

    (up, std), (down, _) = weight(1.0), weight(-1.0)
    claimed = 2 * 1.0 / 500
    assert up - down == pytest.approx(2.0, abs=1e-4)  # the same noise in both
    assert (up - down) / claimed == pytest.approx(500, abs=0.1)
    assert (up - down) / std > 100  # nothing is hidden: more than a hundred deviations


def test_the_noise_gives_the_contribution_away():
    """Other private records, the same public state: sigma changes, and whoever sees the row can measure it."""
    here = made(local_steps=3, learning_rate=0.5)
    told = sent(here)[1]
    other = tagged(hard())
    other.y[(other.tags == 1) & (torch.arange(len(other.y)) < 40)] = 0  # of client 0 alone
    said = sent(made(clients=other, local_steps=3, learning_rate=0.5))[1]
    assert said["std"][0] != told["std"][0] and said["std"][1:] == told["std"][1:]
    assert abs(said["std"][0] / told["std"][0] - 1) > 1e-3


def test_what_holds_is_nothing():
    here = made()
    (cost,) = price(here.method, here.plan)
    assert isinstance(cost.event, NonPrivate) and here.promise.epsilon == math.inf
    claim = here.method.claim(here.plan)
    assert (claim.epsilon, claim.delta, claim.scope) == (here.plan.epsilon, here.plan.delta, "round")
    assert "does not hold" in claim.sentence() and here.method.private is False


# --- the rest


def test_rounds_without_anyone_and_targets_without_classes():
    here = made()
    state = loop.begin(here)
    nobody = play(here, [], state)
    assert len(nobody.sent) == 0 and nobody.after.params is state.params
    assert here.method.decided(nobody.after, here.plan) is None
    heard = play(here, state=state).after
    assert here.method.decided(heard, here.plan)["std"] > 0  # and is not told again when nobody comes
    assert here.method.decided(play(here, [], heard).after, here.plan) is None
    pairs = [(x, x[:, 0]) for x, _ in federation(SIZES)]
    told = sent(job(nn.Linear(20, 1), tagged(pairs), "squared_error", method="fedsdp-paper", learning_rate=0.01))[1]
    assert all(0 < c < 1 for c in told["all"])


def test_the_record_has_the_noise_that_was_injected():
    """Each client's own R and records, of this round: neither the mean size nor the R of the round before."""
    here = [np.arange(n) % 2 for n in SIZES]
    keys = {"method": "fedsdp-paper", "rounds": 3, "local_steps": 3, "learning_rate": 0.5, "seed": 2, "device": "cpu"}
    found = sordino.train(linear(), hard(), private_data=here, epsilon=5.0, **keys)
    trained = [32, 21, 24]  # records, of 40, 25, 30
    before = 0.5
    assert all(record.noise is None for record in found.history)  # it depends on private attributes
    for record in found.private.history:
        ratios = [record.decided["clients"][str(k)]["ratio"] for k in range(3)]
        stds = [fedsdp_std(20, n, 5.0, 1e-5, r) for n, r in zip(trained, ratios, strict=True)]
        assert record.noise == pytest.approx(np.mean(stds), rel=1e-5) and record.noise == record.decided["std"]
        assert record.noise != pytest.approx(fedsdp_std(20, round(0.8 * np.mean(SIZES)), 5.0, 1e-5, before), rel=1e-4)
        before = record.decided["ratio"]


@pytest.mark.parametrize(("decided", "noise"), [(None, None), ({}, None), ({"std": 2}, 2.0), ({"std": [2.0]}, None)])
def test_noise_that_is_known_afterwards_is_taken_from_what_was_decided(decided, noise):
    assert loop._injected(decided) == noise


def test_clients_keep_their_numbers_whatever_an_answer_counts():
    here = made()
    state = loop.begin(here)
    answer = replace(play(here, state=state).sent, ids=np.array([3, 77, 4097]))
    for weight in torch.linspace(0.3, 0.99, 24):
        after = here.method.merge(state, answer.weighted(weight.expand(3)), here.plan)
        assert list(here.method.decided(after, here.plan)["clients"]) == ["3", "77", "4097"]
        assert torch.equal(after.method.std, answer["std"])


@pytest.mark.parametrize(
    "bad",
    [{"clip": 0}, {"held_out": 0.0}, {"held_out": 1.0}, {"permutations": -1}, {"groups": 0}, {"gradient_clip": 0}],
)
def test_nonsense_is_refused(bad):
    with pytest.raises(SpecError):
        FedSdpPaper(**bad)


def test_data_must_say_what_is_private():
    here = made()
    more = with_tags(adopt(hard()), [np.arange(n) % 2 + 1 for n in SIZES])
    for wrong, message in ((adopt(hard()), "private_data"), (more, "groups = 1")):
        with pytest.raises(DataError, match=message):
            sent(here, clients=wrong)


def test_a_run_from_the_shell_prints_the_claim_and_explains_itself(sordino_command, small_npz, tmp_path):
    done = sordino_command(
        "run", "--method", "fedsdp-paper", "--dataset", str(small_npz), "--private-data", "label:1", "--clients", "4",
        "--without-private", "1", "--rounds", "2", "--epsilon", "50", "--seed", "1", "--name", "a", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    assert "Claimed by Li et al. (2025)" in text and "for a single round" in text
    records = [json.loads(line) for line in (tmp_path / "runs/a/private/records.jsonl").read_text().splitlines()]
    chosen = records[0]["decided"]
    assert set(chosen["clients"]) == {"0", "1", "2", "3"}
    assert chosen["clients"]["3"]["ratio"] == 0 and chosen["ratio_min"] == 0 and chosen["clients"]["3"]["std"] > 0
    said = FedSdpPaper().explain(records)
    assert len(said) == 2 and "Least at client 3: 0 %" in said[0] and "group 1" in said[0]
