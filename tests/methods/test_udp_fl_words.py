"""What udp-fl tells of its rounds: records, explanations and figures."""

import json
import re

import pytest

import sordino
from sordino.methods.udp_fl.method import UdpFl
from sordino.privacy.events import Repeated
from sordino.privacy.mechanisms.laplace import LaplaceL2Event
from sordino.privacy.tightest import epsilon
from support.problems import federation, job, linear
from support.udp import rounds_of


def test_what_a_round_records_and_what_is_said_of_it():
    made = job(method="udp-fl", rounds=4, reselect=2)
    states = rounds_of(made, 4)[0][1:]
    rounds = [{"round": s.round, "decided": made.method.decided(s, made.plan)} for s in states]
    json.dumps(rounds)
    spent = [r["decided"]["renyi"] for r in rounds]
    assert spent == pytest.approx([spent[-1] * k / 4 for k in (1, 2, 3, 4)])
    assert spent[-1] == rounds[0]["decided"]["renyi_total"]
    assert ["next" in r["decided"] for r in rounds] == [False, True, False, True]
    said = " ".join(made.method.explain(rounds))
    for word in ("chose gaussian", "Round 2", "stays", "After round 4", "Renyi divergence"):
        assert word in said
    assert made.method.explain([]) == []


def test_records_of_an_earlier_version_are_still_explained():
    """They have neither a sensitivity nor a share of coordinates."""
    made = job(method="udp-fl", rounds=2, reselect=2)
    rounds = [{"round": s.round, "decided": made.method.decided(s, made.plan)} for s in rounds_of(made, 2)[0][1:]]
    for record in rounds:
        for name in ("sensitivity", "norm"):
            del record["decided"][name]
    rounds[1]["decided"]["seen"] = {"signal": 2.0, "kurtosis": 3.0, "visible": True}
    said = " ".join(made.method.explain(rounds))
    assert "chose gaussian" in said and "kurtosis 3; gaussian stays." in said and "One record" not in said
    assert "One record moves the sum of a step by at most 1 in the L2 norm" in " ".join(
        made.method.explain([{"round": 1, "decided": made.method.decided(rounds_of(made, 1)[0][-1], made.plan)}])
    )


@pytest.mark.parametrize("keys", [{}, {"penalty": False}, {"mechanism": "laplace"}, {"managed": True}])
def test_scales_are_told_of_everyone_who_has_one_of_its_own(keys):
    """The run's epsilon is 4, which nobody has; 6 of the 8 clients have the least budget."""
    made = job(method="udp-fl", budgets="0.5:0.75,2:0.25", epsilon=4.0, **keys)
    states = rounds_of(made, 2)[0][1:]
    rounds = [{"round": s.round, "decided": made.method.decided(s, made.plan)} for s in states]
    said, wide = made.method.explain(rounds), rounds[0]["decided"]["sensitivity"]
    own = sorted(set(made.plan.multipliers))
    assert made.plan.z < own[0] < own[1]
    if made.method.managed:  # a step's
        drawn = [rounds[0]["decided"]["multiplier"][k] * wide for k in (0, 2)]
    else:
        drawn = [z * wide for z in own]
    first, second = re.search(r"noise of scale (\S+) for 2 clients, (\S+) for 6 clients a step;", said[-1]).groups()
    assert [float(first), float(second)] == pytest.approx(drawn, rel=1e-3)
    assert said[-1].endswith("for the run's whole epsilon, the same share of less for a smaller budget.")
    if made.method.mechanism == "auto":
        (line,) = [line for line in said if line.startswith("These scales are for the run's whole epsilon")]
        assert f"multiplier {made.plan.z:.4g}" in line and f"{own[0]:.4g} (2 clients), {own[1]:.4g} (6 clients)" in line
    plain = job(method="udp-fl", **keys)
    decided = plain.method.decided(rounds_of(plain, 1)[0][-1], plain.plan)
    said = " ".join(plain.method.explain([{"round": 1, "decided": decided}]))
    assert "noise of scale" in said and "clients a step" not in said and "whole epsilon" not in said


@pytest.mark.parametrize(("share", "words"), [(1.0, "about 100 %"), (0.9996, "about 100 %"), (0.05, "about 5 %")])
def test_a_share_of_all_coordinates_is_said_to_be_100_per_cent(share, words):
    made = job(method="udp-fl", rounds=2, reselect=2)
    rounds = [{"round": s.round, "decided": made.method.decided(s, made.plan)} for s in rounds_of(made, 2)[0][1:]]
    rounds[1]["decided"]["seen"] = {"signal": 2.0, "kurtosis": 3.0, "visible": True, "density": share, "tail": None}
    assert f"{words} of the coordinates carry it" in " ".join(made.method.explain(rounds))


def test_a_run_from_the_shell_and_its_explanation(sordino_command, small_npz, tmp_path):
    done = sordino_command(
        "run", "--method", "udp-fl", "--dataset", str(small_npz), "--clients", "4", "--rounds", "3", "--reselect", "2",
        "--profile", "medical", "--path", "bezier", "--server-data", "0.2", "--epsilon", "8", "--seed", "1", "--json",
        "--name", "a", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["claim"] is None and told["guarantee"]["epsilon"] <= 8
    records = [json.loads(line) for line in (tmp_path / "runs/a/private/records.jsonl").read_text().splitlines()]
    assert [r["decided"]["mechanism"] for r in records] == ["gaussian"] * 3
    assert "profile medical" in UdpFl(reselect=2).explain(records)[0]
    assert epsilon(Repeated(LaplaceL2Event(records[0]["decided"]["noise_multiplier"]), 3), 1e-5) <= 8


def in_two(tmp_path, **keys):
    """Users whose records lie in two clients each, two rounds."""
    users = [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5], [3, 3, 4, 4, 5, 5]]
    keys = {"rounds": 2, "epsilon": 2.0, "learning_rate": 0.1, "device": "cpu", "unit": "user", "seed": 0} | keys
    made = sordino.train(
        linear(), federation((6,) * 4), users=users, clients_per_user=2, method="udp-fl", out=str(tmp_path), **keys
    )
    return [record.decided for record in made.private.history]


def test_what_is_told_of_users_counts_every_client_that_they_are_in(tmp_path):
    told = in_two(tmp_path, mechanism="laplace", pure=True)
    assert told[-1]["epsilon_at_delta_0"] == pytest.approx(2.0, rel=2e-3)  # the small delta adds next to nothing
    (chosen,) = [c for c in in_two(tmp_path)[0]["choice"]["candidates"] if c["mechanism"] == "gaussian"]
    four = job(linear(), federation((6,) * 4), method="dp-sgd", epsilon=2.0, rounds=4)
    assert chosen["scale"] == pytest.approx(four.plan.z, rel=1e-3)  # two rounds in two clients are four releases


def test_a_round_that_nobody_came_to_says_nothing_of_what_was_spent(tmp_path):
    made = sordino.train(linear(), federation(), method="udp-fl", managed=True, max_participations=1, rounds=3,
                         epsilon=4.0, learning_rate=0.1, device="cpu", out=str(tmp_path), seed=0)  # fmt: skip
    told = [r.decided for r in made.private.history]
    assert told[0]["renyi"] == pytest.approx(told[0]["renyi_total"])
    assert all("renyi" not in d and "rho" not in d for d in told[1:])
