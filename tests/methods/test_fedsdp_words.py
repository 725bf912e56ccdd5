"""What the sound FedSDP records and tells a participant."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sordino.methods.fedsdp.method import UNITS, FedSdp, noise_for
from sordino.runs import loop
from support.fedsdp_jobs import knowing, made, message, tagged
from support.methods import federation_of, play
from support.problems import federation


def test_a_run_from_the_shell_and_its_explanation(sordino_command, small_npz, tmp_path):
    done = sordino_command(
        "run", "--method", "fedsdp", "--dataset", str(small_npz), "--private-data", "label:0;2", "--groups", "2",
        "--clients", "4", "--rounds", "4", "--refresh", "2", "--epsilon", "20", "--seed", "1", "--json",
        "--name", "a", "--normalise", "none", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["claim"] is None and told["guarantee"]["epsilon"] <= 20
    records = [json.loads(line) for line in (tmp_path / "runs/a/private/records.jsonl").read_text().splitlines()]
    chosen = [r["decided"] for r in records]
    assert [c["learnt"] for c in chosen] == [True, False, True, False]
    assert [c["sums"] for c in chosen] == [3, 1, 3, 1]
    left = [c["left"] for c in chosen]
    assert left == sorted(left, reverse=True) and left[0] == pytest.approx(0.75)
    assert chosen[1]["ratio_used"] == chosen[0]["ratio"] and sum(chosen[0]["shares"]) == pytest.approx(1)
    said = FedSdp(groups=2).explain(records)
    assert "1.7 times as much" in said[0] and "times as much" not in said[1]
    assert len(said) == 4 and "Round 1" in said[0] and "group 2" in said[0] and "Released anew" not in said[1]
    assert f"{100 * chosen[0]['ratio']:.0f} %" in said[1]
    assert "(nothing was learnt yet)" in said[0] and [c["learnt_in"] for c in chosen] == [0, 1, 1, 3]
    assert chosen[2]["shares_used"] == chosen[0]["shares"] != chosen[2]["shares"] == chosen[3]["shares_used"]
    for text, c in zip(said[1:], chosen[1:], strict=True):
        share, group = max((s, g) for g, s in enumerate(c["shares_used"][1:], start=1))
        assert f"(led by group {group} with {round(100 * share)} %, learnt in round {c['learnt_in']})" in text
    assert [set(c["clients"]) for c in chosen] == [{"0", "1", "2", "3"}] * 4
    first, second = (c["noise_multiplier"] / c["even_multiplier"] for c in chosen[:2])
    assert first == pytest.approx(1, rel=1e-4) and "as much noise as" in said[0]
    assert (second > 1) == (chosen[0]["ratio"] > 0.5) == ("asks for more noise" in said[1])


def test_each_client_is_told_what_its_own_participations_give():
    """Cohorts and budgets of their own; beside it the docstring's allocation, written out by client."""
    slope, rounds, steps = 1.5, 9, 2
    here = made(rounds=rounds, slope=slope, refresh=3, local_steps=steps, budgets="100:0.5,600:0.5", epsilon=600.0)
    state, draw, ratios = loop.begin(here), np.random.default_rng(4), set()
    left, seen, differ, federation = [1.0] * 4, [0] * 4, 0, federation_of(here)
    for t in range(rounds):
        cohort = sorted(draw.choice(4, draw.integers(1, 5), replace=False).tolist())
        ratio = state.method.ratio
        state = play(here, cohort, state, federation).after
        told = here.method.decided(state, here.plan)["clients"]
        assert sorted(told) == [str(k) for k in cohort]
        for k in cohort:
            n = min(rounds - seen[k], rounds - t)
            rho = min(left[k] / n / (1 + slope * (ratio - 0.5)), left[k] - (n - 1) * 0.5 / rounds, left[k])
            left[k], seen[k] = left[k] - rho, seen[k] + 1
            z = here.plan.multipliers[k] * (steps / rho) ** 0.5
            found = [told[str(k)][name] for name in ("rho", "left", "noise_multiplier")]
            assert found == pytest.approx([rho, left[k], z], rel=1e-4, abs=1e-5)
        ratios.add(ratio)
        differ += len({told[str(k)]["rho"] for k in cohort}) > 1
    assert len(ratios) > 2 and differ > 3 and len(set(here.plan.multipliers)) == 2


def test_what_a_client_says_of_itself_survives_the_weight_of_its_answer():
    """Where clients drop out, whole answers count less; what they say of themselves does not."""
    here = made(clients=tagged(federation((4,) * 12)))
    state, answer = loop.begin(here), play(here).sent
    for weight in torch.linspace(0.3, 0.99, 24):
        heard = answer.weighted(weight.expand(12))
        told = here.method.decided(here.method.merge(state, heard, here.plan), here.plan)
        assert list(told["clients"]) == [str(k) for k in range(12)]
        assert all(own["left"] == pytest.approx(2 / 3, abs=1e-5) for own in told["clients"].values())
        assert told["left"] == pytest.approx(2 / 3, abs=1e-5) and told["rho"] == pytest.approx(1 / 3, abs=1e-5)


CHOSEN = {
    "ratio_used": 0.8, "ratio": 0.9, "shares": [0.1, 0.2, 0.7], "learnt": True, "sums": 3, "rho": 0.1, "left": 0.5,
    "noise_multiplier": 9.0, "even_multiplier": 8.0, "shares_used": [0.2, 0.5, 0.3], "learnt_in": 1,
    "clients": {"2": {"rho": 0.1, "left": 0.4, "noise_multiplier": 7.0},
                "5": {"rho": 0.1, "left": 0.6, "noise_multiplier": 9.5},
                "7": {"rho": 0.0, "left": 0.0, "noise_multiplier": 0.0}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "(led by group 1 with 50 %, learnt in round 1)"),  # not by the one that leads from here on
        ({}, "from here on the private share is 90 %, most of it by group 2."),
        ({}, "By client the multiplier was 7 (client 2) to 9.5 (client 5)."),
        ({"learnt": False}, "lost in that noise, so nothing new was learnt."),
        ({"learnt": False, "sums": 1}, "(led by group 1 with 50 %, learnt in round 1)"),
        ({"shares_used": [1.3, -0.2, -0.1]}, "(led by none, learnt in round 1)"),
        ({"shares_used": [0.4, 0.6]}, "80 % of the step (learnt in round 1), which"),
        ({"learnt_in": 0}, "80 % of the step (nothing was learnt yet), which"),
        ({"learnt_in": -1}, "80 % of the step, which"),
        ({"clients": {"5": CHOSEN["clients"]["5"]}}, "Client 5: multiplier 9.5, for 10 % of its budget; 60 % of it"),
        ({"clients": {"7": CHOSEN["clients"]["7"]}}, "Client 7 had nothing left, so it sent nothing"),
        ({"clients": {}}, "The client asked for was not in it."),
    ],
)
def test_words_for_what_was_chosen(change, words):
    (said,) = FedSdp(groups=2).explain([{"round": 4, "decided": CHOSEN | change}])
    assert words in said


def single(rho, left):
    """Of a client with 8 participations, an even part of whose budget is noise multiplier 8."""
    return {"rho": rho, "left": left, "noise_multiplier": 8 * (0.125 / rho) ** 0.5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            single(0.0625, 0.0625),
            ", without effect (no more was left than is kept for each later one): multiplier 11.3 ",
        ),
        (single(0.2, 0.0), ", without effect (the last participation spends all that is left): multiplier "),
        (single(0.2, 0.1), "asks for less noise than an even spread of what was left: multiplier "),
        (single(0.0625, 0.0625) | {"ratio_used": 0.8}, "asks for more noise than an even spread of what was left: "),
    ],
)
@pytest.mark.parametrize("clients", [None, {}, {"4": {}}, {"4": {}, "6": {}}])
def test_a_share_that_had_no_effect_is_said_to_have_had_none(change, words, clients):
    every = None if clients is None else {k: single(change["rho"], change["left"]) for k in clients}
    chosen = CHOSEN | {"ratio_used": 0.2} | change | {"clients": every}
    (said,) = FedSdp(groups=2).explain([{"round": 8, "decided": chosen}])
    assert words.replace("effect (", "effect at client 4 (" if clients and len(clients) == 1 else "effect (") in said


def test_of_some_clients_it_is_said_of_how_many_and_without_slope_of_all():
    every = {"1": single(0.0625, 0.0625), "2": single(0.2, 0.1), "3": single(0.1, 0.0)}
    chosen = CHOSEN | {"ratio_used": 0.2, "clients": every} | single(0.12, 0.05)
    (said,) = FedSdp(groups=2).explain([{"round": 8, "decided": chosen}])
    assert "without effect at 2 of 3 clients (no more was left than is kept for each later one or the last part" in said
    (said,) = FedSdp(groups=2, slope=0.0).explain([{"round": 8, "decided": CHOSEN}])
    assert "what was left, without effect (slope is 0): multiplier 9 " in said


@pytest.mark.parametrize("slope", [0.5, 1.0, 1.9])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.7])
def test_no_effect_is_said_where_the_even_part_of_what_was_left_was_given_and_nowhere_else(slope, ratio):
    """Beside it the same budget with R = 1/2 in this round alone; clients come and go."""
    rounds, draw, seen = 9, np.random.default_rng(5), set()
    here = made(rounds=rounds, slope=slope, refresh=rounds)
    state = loop.begin(here)
    kept = [(0, 0, 0)] * 4
    for t in range(rounds):
        now = knowing(replace(state, round=t), ratio=ratio, merged=t)
        even = knowing(now, ratio=0.5)
        for k in draw.choice(4, draw.integers(1, 5), replace=False):
            units, after = here.method.allow(kept[k], now, here.plan)
            plain, _ = here.method.allow(kept[k], even, here.plan)
            kept[k] = after
            own = {"rho": units / UNITS, "left": 1 - after[0] / UNITS, "noise_multiplier": noise_for(units, 1, 1.0)}
            chosen = CHOSEN | {"ratio_used": ratio} | own | {"even_multiplier": noise_for(UNITS // rounds, 1, 1.0)}
            (said,) = FedSdp(groups=2, slope=slope).explain([{"round": t + 1, "decided": chosen | {"clients": {}}}])
            none = abs(units - plain) <= 2
            assert ("without effect" in said) == none, (t, k, units, plain)
            seen.add(none)
    assert seen == ({True, False} if ratio < 0.5 else {False})


def test_records_of_earlier_versions_are_explained_without_what_they_lack():
    old = {k: v for k, v in CHOSEN.items() if k not in ("shares_used", "learnt_in", "clients")}
    (said,) = FedSdp(groups=2).explain([{"round": 4, "decided": old}])
    assert "80 % of the step, which asks for more" in said and "lient" not in said and "group 2 70 %" in said


def test_a_refresh_that_is_lost_in_noise_leaves_the_round_in_which_it_was_learnt():
    here, draw = made(refresh=2), torch.Generator().manual_seed(3)
    state, one = loop.begin(here), torch.ones(here.model.layout.dim)
    clear, lost = torch.stack([one, 2 * one]), torch.stack([-1e-3 * one] * 2)
    state = replace(here.method.merge(state, message(clear, 1e-3, here, draw), here.plan), round=2)
    assert here.method.decided(state, here.plan)["learnt_in"] == 0  # of the noise of round 1
    while (after := here.method.merge(state, message(lost, 10.0, here, draw), here.plan)).method.learnt:
        pass
    for again in (after, here.method.merge(replace(after, round=4), message(clear, 1e-3, here, draw), here.plan)):
        told = here.method.decided(again, here.plan)
        assert told["learnt_in"] == 1 and told["shares_used"] == pytest.approx([1 / 3, 2 / 3], abs=1e-2)
    assert (again.method.learnt_in_used, again.method.learnt_in) == (1, 5)
