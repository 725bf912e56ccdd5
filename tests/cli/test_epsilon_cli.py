"""`sordino epsilon` and `sordino calibrate`, as people and programs meet them."""

import importlib.util
import json
import shlex
import struct
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.cli import catalogue
from sordino.cli.epsilon import digits
from sordino.core import plugin
from sordino.privacy import shuffle, tightest
from sordino.privacy.algebra import grouped
from sordino.privacy.events import (
    Composed,
    Event,
    FixedSize,
    GaussianEvent,
    Pure,
    Repeated,
    Sampled,
    Visible,
)
from sordino.privacy.guarantee import UNITS, VIEWERS
from sordino.privacy.written import from_json
from support.accountants import by_accountant

DELTA = 1e-5
DPSGD = "--mechanism gaussian --noise 1.0 --rate 0.01 --steps 1000 --delta 1e-5"


@pytest.fixture
def call(monkeypatch, capsys):
    """The command as a shell calls it: exit code, stdout, stderr."""
    from sordino.cli.main import main

    def run(line):
        monkeypatch.setattr(sys, "argv", ["sordino", *shlex.split(line)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def ask(call):
    """The JSON object of a command that must work."""

    def run(line):
        code, out, err = call(line + ("" if "--json" in line else " --json"))
        assert code == 0 and err == "", err
        return json.loads(out)

    return run


def price(event):
    return tightest.epsilon(event, DELTA)


def kind(name):
    plugin.import_all("privacy.mechanisms")
    return Event._kinds[name]


# ---------------------------------------------------------------------------------------------- what is said


def test_the_golden_question(ask):
    found = ask(f"epsilon {DPSGD} --relation add-remove")
    assert round(found["epsilon"], 4) == 1.8282 and found["epsilon"] == pytest.approx(1.82824, abs=2e-5)
    assert found["total"] is True and found["delta"] == 1e-5 and found["steps"] == 1000
    assert (found["unit"], found["relation"], found["viewer"]) == ("record", "add/remove", "server")
    assert found["by_accountant"] == by_accountant(Repeated(Sampled(GaussianEvent(1.0), 0.01), 1000), DELTA)
    assert found["accountant"] == "pld" and found["epsilon"] == min(found["by_accountant"].values())
    assert found["by_accountant"]["rdp"] == pytest.approx(2.10136652542)
    assert found["approximate"] == {
        "gdp-clt": pytest.approx(1.61771180875)
    }  # below the truth, and not among the others
    assert set(found["why"]) >= {"basic", "advanced", "kov", "zcdp", "rdp", "gdp", "pld", "gdp-clt"}
    assert "approximate, not a promise" in found["why"]["gdp-clt"]
    assert from_json(found["event"]) == Repeated(Sampled(GaussianEvent(1.0), 0.01), 1000)


@pytest.mark.parametrize("flags", ["", "--unit client --viewer public --relation replace"])
def test_people_get_a_table_and_a_sentence_that_says_all(call, ask, flags):
    code, out, err = call(f"epsilon {DPSGD} {flags}")
    found = ask(f"epsilon {DPSGD} {flags}")
    assert code == 0 and err == ""
    lines = out.strip().splitlines()
    assert lines[0].split() == ["mechanism", "gaussian", "(noise", "1)"] and "Poisson, rate 0.01" in lines[1]
    sentence = next(line for line in lines if line.startswith("In total"))
    assert sentence == found["sentence"]
    wanted = (
        "In total over 1000 steps",
        UNITS[found["unit"]],
        VIEWERS[found["viewer"]],
        f"relation {found['relation']}",
    )
    for words in (*wanted, "delta = 1e-05", f"epsilon = {digits(found['epsilon'])}"):
        assert words in sentence
    assert "zcdp" not in out


def test_explain_shows_every_accountant_and_marks_the_central_limit(call):
    out = call(f"epsilon {DPSGD} --explain")[1]
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "1.829" in rows["pld"] and "2.102" in rows["rdp"]
    assert "needs a rho" in rows["zcdp"] and "plain Gaussian noise only" in rows["gdp"]
    assert "~1.618" in rows["gdp-clt"] and "approximate, not a promise" in rows["gdp-clt"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.82824, "1.829"), (2.0, "2"), (0.0012341, "0.001235"), (1234.5612, "1234.562"), (5e-9, "0.000000005"), (0, "0")],
)
def test_an_epsilon_is_never_printed_below_itself(value, shown):
    assert digits(value) == shown and float(digits(value)) >= value
    assert digits(float("inf")) == "infinite"


# ---------------------------------------------------------------------------------- mechanisms and samplers


@pytest.mark.parametrize("name", plugin.available("privacy.mechanisms"))
def test_every_mechanism_is_priced_from_its_own_flags(name, ask):
    one = catalogue.mechanism(name)
    given = {p.name: value for p in one.params if (value := one.example().get(p.name)) is not None}
    flags = " ".join(f"--{one.param(n).flag} {v:g}" for n, v in given.items())
    found = ask(f"epsilon --mechanism {name} {flags} --delta 1e-5 --steps 3")
    assert from_json(found["event"]) == Repeated(one.event(given), 3)
    assert found["epsilon"] == pytest.approx(price(Repeated(one.event(given), 3)), rel=1e-6)
    assert found["relation"] == ("replace" if one.local else "add/remove")


@pytest.mark.parametrize(
    ("flags", "golden"),
    [
        ("gaussian --noise 1 --rate 0.01 --steps 1000 --relation replace", 2.84344027055),
        ("gaussian --noise 2 --rate 0.05 --steps 300 --relation replace", 3.71087788108),
        ("gaussian --noise 0.8 --rate 0.02 --steps 500", 4.66801175287),
        ("laplace --noise 2 --rate 0.05 --steps 300", 1.60971156383),
        ("staircase --local-epsilon 0.5 --gamma 0.4 --rate 0.05 --steps 300", 1.70879764701),
        ("gaussian --noise 0.5 --steps 1", 9.99725614643),  # mu = 2
        ("gaussian --noise 1 --steps 1 --relation replace", 9.99725614643),  # z = 1 of two clip norms
        ("gaussian --noise 1 --group 2", 9.99725614643),
        ("gaussian --noise 2 --group 2 --relation replace", 9.99725614643),
        ("laplace --noise 2 --norm 2", 2.16571554518),  # rho = 1/8, improved conversion
    ],
)
def test_golden_values(flags, golden, ask):
    assert ask(f"epsilon --mechanism {flags} --delta 1e-5")["epsilon"] == pytest.approx(golden, rel=3e-6)


def test_replacing_doubles_noise_and_never_a_report(ask):
    def event(flags):
        return from_json(ask(f"epsilon --delta 1e-5 --relation replace --mechanism {flags}")["event"])

    assert event("gaussian --noise 4") == GaussianEvent(2.0)
    assert event("laplace --noise 4") == kind("LaplaceEvent")(2.0)
    assert event("sparse-vector --local-epsilon 1") == Pure(2.0)
    assert event("gaussian --noise 4 --rate 0.1") == Sampled(GaussianEvent(4.0), 0.1, "replace")
    for name, one in catalogue.mechanisms().items():
        if hasattr(one.cls, "randomize") or name == "poisson-binomial":
            flags = " ".join(f"--{one.param(n).flag} {v:g}" for n, v in one.example().items())
            assert one.local and event(f"{name} {flags}") == one.event(one.example())


def test_a_fixed_size_is_about_replaced_units_and_says_the_sensitivity(ask):
    found = ask("epsilon --mechanism gaussian --noise 1.5 --fixed-size 25 --population 1000 --steps 40 --delta 1e-5")
    assert from_json(found["event"]) == Repeated(FixedSize(GaussianEvent(0.75), 25, 1000), 40)
    assert found["relation"] == "replace" and found["sensitivity"] == 2 and "2 clip bounds" in found["notes"][0]
    assert ask(f"epsilon {DPSGD}")["sensitivity"] == 1
    report = ask("epsilon --mechanism duchi --local-epsilon 1 --fixed-size 25 --population 1000 --delta 1e-5")
    assert from_json(report["event"]) == FixedSize(kind("DuchiEvent")(1.0), 25, 1000) and report["sensitivity"] is None


def test_a_drawn_round_is_amplified_as_a_whole_and_only_for_who_cannot_see_it(ask):
    flags = "--mechanism gaussian --noise 1 --local-steps 20 --client-rate 0.1 --steps 30 --delta 1e-5"
    inside = Repeated(Sampled(GaussianEvent(1.0), 0.05), 20)
    found = ask(f"epsilon {flags} --rate 0.05")
    assert found["viewer"] == "public" and from_json(found["event"]) == Repeated(Visible(inside, 0.1), 30)
    assert found["by_viewer"]["server"] == pytest.approx(8.29, abs=5e-3)
    assert found["by_viewer"]["public"] == pytest.approx(found["epsilon"]) and found["epsilon"] < 4
    seen = ask(f"epsilon {flags} --rate 0.05 --viewer server")
    assert from_json(seen["event"]) == Repeated(inside, 30) and seen["epsilon"] == pytest.approx(8.29, abs=5e-3)
    assert any("sees who takes part" in note for note in seen["notes"])
    client = ask(f"epsilon {flags} --unit client")
    assert from_json(client["event"]) == Repeated(Sampled(Repeated(GaussianEvent(1.0), 20), 0.1), 30)
    replaced = ask(f"epsilon {flags} --unit client --relation replace")
    assert from_json(replaced["event"]) == Repeated(Sampled(Repeated(GaussianEvent(1.0), 20), 0.1, "replace"), 30)
    assert replaced["epsilon"] > client["epsilon"]


def test_drawn_reports_and_drawn_clients_hide_nothing_from_the_server(ask):
    report = "epsilon --mechanism randomized-response --local-epsilon 1 --rate 0.2 --steps 9 --delta 1e-5"
    one = kind("RandomizedResponseEvent")(1.0)
    assert from_json(ask(report)["event"]) == Repeated(Visible(one, 0.2), 9)
    assert from_json(ask(f"{report} --viewer server")["event"]) == Repeated(one, 9)
    client = "epsilon --mechanism gaussian --noise 3 --rate 0.2 --unit client --steps 9 --delta 1e-5"
    assert from_json(ask(client)["event"]) == Repeated(Sampled(GaussianEvent(3.0), 0.2), 9)
    assert from_json(ask(f"{client} --viewer server")["event"]) == Repeated(GaussianEvent(3.0), 9)


def test_a_group_is_the_grouped_event(ask):
    event = Repeated(Sampled(GaussianEvent(4.0), 0.01), 50)
    found = ask("epsilon --mechanism gaussian --noise 4 --rate 0.01 --steps 50 --group 3 --delta 1e-5")
    assert from_json(found["event"]) == grouped(event, 3) and found["sensitivity"] == 3
    assert "any 3 records together are protected" in found["sentence"]


def test_blocks_are_composed_in_order_and_win_over_flags(ask):
    blocks = '--block "noise=1.0 rate=0.01 steps=500" --block "noise=0.8 rate=0.02 steps=500"'
    found = ask(f"epsilon --mechanism gaussian {blocks} --delta 1e-5")
    first, second = Repeated(Sampled(GaussianEvent(1.0), 0.01), 500), Repeated(Sampled(GaussianEvent(0.8), 0.02), 500)
    assert from_json(found["event"]) == Composed((first, second)) and found["steps"] == 1000
    assert 4.668 < found["epsilon"] < 4.668 + 1.5  # the second block alone, and a bit
    mixed = '--block "steps=2" --block "mechanism=laplace noise=5 rate=0.5" --block "fixed-size=1 population=9"'
    event = from_json(ask(f"epsilon --mechanism gaussian --noise 2 --rate 0.1 {mixed} --delta 1e-5")["event"])
    laplace, whole = kind("LaplaceEvent")(5.0), FixedSize(GaussianEvent(1.0), 1, 9)
    parts = (Repeated(Sampled(GaussianEvent(2.0), 0.1, "replace"), 2), Sampled(laplace, 0.5, "replace"), whole)
    assert event == Composed(parts)


def test_binomial_noise_shares_half_of_delta_unless_told(ask):
    flags = "epsilon --mechanism binomial --trials 20000 --dim 4 --l1 8 --l2 4 --linf 4 --steps 5 --delta 1e-5"
    assert ask(flags)["event"]["event"]["delta"] == pytest.approx(1e-6)
    assert ask(f"{flags} --each-delta 1e-7")["event"]["event"]["delta"] == 1e-7
    lost = ask(f"{flags} --each-delta 1e-5")  # five of them are more than the total
    assert lost["infinite"] is True and lost["epsilon"] is None and "No guarantee" in lost["sentence"]


def test_sums_of_discrete_gaussians(ask):
    flags = "epsilon --mechanism discrete-gaussian --noise 2 --clients 10 --dim 4 --l1 8 --l2 4 --delta 1e-5"
    event = kind("DistributedDiscreteGaussianEvent")(8.0, 10, 4, 8.0, 4.0)
    assert from_json(ask(flags)["event"]) == event
    assert ask(flags)["epsilon"] < ask("epsilon --mechanism discrete-gaussian --noise 2 --delta 1e-5")["epsilon"]


# --------------------------------------------------------------------------------------------------- shuffler


def test_shuffled_reports_and_which_bound_applied(ask, call):
    found = ask("epsilon --shuffle 10000 --local-epsilon 2 --delta 1e-5")
    assert found["epsilon"] == pytest.approx(0.130479094425, rel=1e-6) and found["relation"] == "replace"
    assert found["shuffle"]["local_epsilon"] == 2 and found["shuffle"]["amplified"]
    assert found["shuffle"]["bounds"]["clones-2021"] == pytest.approx(0.469583393831)
    assert found["shuffle"]["without_shuffler"] == pytest.approx(2.0, rel=1e-4)
    better = ask("epsilon --shuffle 10000 --mechanism generalized-rr --categories 5 --local-epsilon 2 --delta 1e-5")
    assert (
        better["epsilon"] == pytest.approx(0.0956334880875, rel=1e-6) and better["shuffle"]["randomizer"] == "response"
    )
    rounds = ask("epsilon --shuffle 3000 --local-epsilon 2.5 --steps 10 --delta 1e-5")
    assert rounds["epsilon"] == pytest.approx(price(Repeated(shuffle.ShuffledEvent(2.5, 3000), 10)), rel=1e-9)
    assert 2 * ask("epsilon --shuffle 3000 --local-epsilon 2.5 --delta 1e-5")["epsilon"] < rounds["epsilon"] < 2.5
    out = call("epsilon --shuffle 3000 --local-epsilon 2.5 --delta 1e-5")[1]
    assert "Local level 2.5 per report, 2.5 without the shuffler; the bound that applied: clones" in out


def test_too_few_reports_amplify_nothing_and_say_so(ask):
    found = ask("epsilon --shuffle 10 --local-epsilon 8 --delta 1e-5")
    assert not found["shuffle"]["amplified"] and not found["shuffle"]["closed_form_applies"]
    assert found["epsilon"] == pytest.approx(8, rel=1e-3) and any("no amplification" in n for n in found["notes"])


def test_laplace_reports_are_replaced_before_they_are_shuffled(ask):
    found = ask("epsilon --shuffle 1000 --mechanism laplace --noise 2 --delta 1e-5")
    assert found["shuffle"]["local_epsilon"] == 1.0


# ---------------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize(
    "flags", ["--mechanism gaussian --noise 4 --rate 0.2 --steps 9", "--mechanism laplace --noise 2"]
)
def test_a_picture_is_drawn(flags, ask, tmp_path):
    path = tmp_path / "curve.png"
    assert ask(f"epsilon {flags} --delta 1e-5 --plot {path}")["plot"] == str(path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) == (1500, 660)


def test_without_matplotlib_one_line_says_what_to_install(call, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    code, out, err = call(f"epsilon {DPSGD} --plot {tmp_path}/x.png")
    assert code == 2 and out == "" and err.count("\n") == 1 and 'pip install "sordino[plot]"' in err


# --------------------------------------------------------------------------------------------------- bad input

G = "epsilon --delta 1e-5 --mechanism gaussian"
C = "calibrate --delta 1e-5 --mechanism gaussian"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("epsilon --delta 1e-5", "give --mechanism"),
        ("epsilon --mechanism gaussian --noise 1", "give --delta"),
        ("epsilon --mechanism gaussian --noise 1 --delta 0", "delta must lie strictly between 0 and 1"),
        ("epsilon --mechanism gaussian --noise 1 --delta 1", "delta must lie strictly between 0 and 1"),
        ("epsilon --mechanism gaussian --noise 1 --delta nan", "delta must be finite"),
        ("epsilon --mechanism gausian --noise 1 --delta 1e-5", "Did you mean 'gaussian'?"),
        (G, "gaussian needs --noise"),
        (f"{G} --noise -1", "noise must be positive, not -1"),
        (f"{G} --noise 0", "noise must be positive"),
        (f"{G} --noise nan", "noise must be finite"),
        (f"{G} --noise inf", "noise must be finite"),
        (f"{G} --noise much", "noise must be a number, not 'much'"),
        (f"{G} --noise 1 --rate 1.5", "rate must lie in (0, 1]"),
        (f"{G} --noise 1 --rate 0", "rate must lie in (0, 1]"),
        (f"{G} --noise 1 --rate 0.1 --fixed-size 5 --population 9", "not both"),
        (f"{G} --noise 1 --fixed-size 5", "fixed-size needs population"),
        (f"{G} --noise 1 --population 5", "population needs fixed-size"),
        (f"{G} --noise 1 --fixed-size 9 --population 5", "cannot draw 9 of 5"),
        (f"{G} --noise 1 --fixed-size 2 --population 5 --relation add-remove", "--relation replace"),
        (f"{G} --noise 1 --steps 0", "steps must be at least 1"),
        (f"{G} --noise 1 --steps -3", "steps must be at least 1"),
        (f"{G} --noise 1 --steps 2.5", "steps must be a whole number"),
        (f"{G} --noise 1 --steps 1e30", "steps must be at most 1e+09"),
        (f"{G} --noise 1 --steps 1e6 --local-steps 1e6", "steps must be at most 1e+09"),
        (f"{G} --noise 1 --group 0", "group must be at least 1"),
        (f"{G} --noise 1 --unit person", "unit must be one of record"),
        (f"{G} --noise 1 --viewer god", "viewer must be one of server"),
        (f"{G} --noise 1 --relation swap", "relation must be add-remove or replace"),
        (f"{G} --noise 1 --norm 2", "norm belongs to laplace, staircase, not to gaussian"),
        (f"{G} --noise 1 --unit client --rate 0.1 --client-rate 0.1", "hides no client"),
        ("epsilon --delta 1e-5 --mechanism laplace --noise 1 --norm 3", "norm"),
        ("epsilon --delta 1e-5 --mechanism duchi --local-epsilon 1 --relation add-remove", "--relation replace"),
        ("epsilon --delta 1e-5 --mechanism skellam --mu 5", "skellam needs --l1, --l2"),
        ("epsilon --delta 1e-5 --mechanism binomial --trials 7 --dim 1 --l1 1 --l2 1 --linf 1", "trials must be even"),
        ("epsilon --delta 1e-5 --mechanism tree --noise 9 --rounds 8 --rate 0.1", "say --participations"),
        (
            "epsilon --delta 1e-5 --mechanism banded --noise 9 --rounds 8 --bands 2 --client-rate 0.1",
            "does not amplify",
        ),
        (f'{G} --block "noise"', "'noise' is not name=value"),
        (f'{G} --block "noise=1 =2"', "is not name=value"),
        (f'{G} --block "nois=1"', "Did you mean 'noise'?"),
        (f'{G} --block "noise=1 noise=2"', "gives noise twice"),
        (f'{G} --block "noise=x"', "noise must be a number"),
        (f'{G} --block "noise=1 delta=1e-6"', "no setting of a block is called 'delta'"),
        (f"""{G} --block "noise='1" """, "cannot be read"),
        ("epsilon --delta 1e-5 --shuffle 100", "need --local-epsilon"),
        ("epsilon --delta 1e-5 --shuffle 0 --local-epsilon 1", "shuffle must be at least 1"),
        ("epsilon --delta 1e-5 --shuffle 10 --local-epsilon -1", "local-epsilon must be positive"),
        ("epsilon --delta 1e-5 --shuffle 10 --local-epsilon 1 --rate 0.5", "cannot be sampled as well"),
        (f"{G} --noise 1 --shuffle 10", "pure local DP only"),
        (f"{G} --noise 1 --plot x.txt", "--plot writes .png"),
        (f"{G} --noise 1 --plot no/such/folder/x.png", "no folder"),
        (C, "give --epsilon"),
        (f"{C} --epsilon 0", "epsilon must be positive"),
        (f"{C} --epsilon -1", "epsilon must be positive"),
        (f"{C} --epsilon nan", "epsilon must be finite"),
        (f"{C} --epsilon 1 --noise 2", "calibrate looks for noise"),
        (f"{C} --epsilon 1 --noise 2 --find steps --steps 3", "calibrate looks for the number of steps"),
        (f"{C} --epsilon 1 --find clip", "find must be one of noise, steps"),
        (f"{C} --epsilon 1 --noise 1 --find steps", "not even one step fits within epsilon=1"),
        (f"{C} --epsilon 1e-3 --steps 1e9", "Use fewer rounds or steps"),
        ("calibrate --epsilon 1 --delta 1e-5 --mechanism skellam", "skellam needs --l1, --l2"),
        ("calibrate --epsilon 1 --delta 1e-5 --mechanism laplace --norm 3", "norm"),
        (f'{C} --epsilon 1 --block "noise=-1" --block "noise=1"', "noise must be positive"),
    ],
)
def test_bad_input_is_one_clear_line_and_nothing_else(line, words, call):
    code, out, err = call(line)
    assert code == 2 and out == "", out
    assert err.startswith("sordino: ") and err.count("\n") == 1 and words in err, err


@pytest.mark.slow
def test_the_real_command_says_the_same(sordino_command, tmp_path):
    done = sordino_command("epsilon", *shlex.split(DPSGD), "--json", cwd=tmp_path)
    assert done.returncode == 0 and round(json.loads(done.stdout)["epsilon"], 4) == 1.8282 and done.stderr == ""
    done = sordino_command("epsilon", *shlex.split(DPSGD), "--noise", "-1", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("flags", ["--noise 1e-2", "--noise 1e4", "--noise 0.03 --rate 0.5", "--noise 50 --rate 1e-6"])
@pytest.mark.parametrize("steps", [1, 1000])
def test_extreme_noise_has_an_epsilon(flags, steps, ask):
    found = ask(f"epsilon --mechanism gaussian {flags} --steps {steps} --delta 1e-6")
    assert 0 <= found["epsilon"] < 1e9


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", ["gaussian --noise 2 --rate 1e-4", "laplace --noise 50 --rate 1e-3", "gaussian --noise 500"]
)
def test_ten_million_steps(flags, ask):
    one, many = (ask(f"epsilon --mechanism {flags} --delta 1e-6 --steps {n}")["epsilon"] for n in ("1e6", "1e7"))
    assert 2.5 * one < many < 30 * one


def test_many_reports_of_one_event_are_the_same_as_one_accountant_says(ask):
    found = ask("epsilon --mechanism rappor --reports 5 --delta 1e-5")
    assert from_json(found["event"]) == kind("RapporEvent")(2, 0.5, 0.5, 0.75, 5)


# --------------------------------------------------------------------------------------------------- calibrate

ROUND_TRIPS = [
    "gaussian",
    "gaussian --rate 0.05 --steps 100",
    "gaussian --fixed-size 10 --population 200 --steps 20",
    "gaussian --relation replace --rate 0.1 --steps 10",
    "gaussian --rate 0.1 --local-steps 3 --client-rate 0.2 --steps 5",
    "laplace --rate 0.1 --steps 50",
    "laplace --norm 2 --steps 7",
    "staircase --steps 30",
    "discrete-gaussian --rate 0.2 --steps 20",
    "discrete-laplace --l1 10 --steps 5",
    "skellam --l1 8 --l2 4 --steps 4",
    "exponential --steps 20",
    "tree --rounds 64",
    "banded --rounds 64 --bands 8 --participations 4",
    "randomized-response --steps 9",
    "priv-unit --dim 20 --steps 3",
]


@pytest.mark.slow
@settings(max_examples=16, deadline=None)
@given(flags=st.sampled_from(ROUND_TRIPS), log=st.floats(-1.5, 1.5), delta=st.sampled_from([1e-4, 1e-6, 1e-9]))
def test_what_calibrate_finds_epsilon_confirms(flags, log, delta):
    from click.testing import CliRunner

    from sordino.cli.main import cli

    target = round(10**log, 4)
    both = f"--mechanism {flags} --delta {delta} --json"
    found = json.loads(CliRunner().invoke(cli, shlex.split(f"calibrate --epsilon {target} {both}")).output)
    setting = f"--{found['parameter']} {found['value']!r}"
    again = json.loads(CliRunner().invoke(cli, shlex.split(f"epsilon {setting} {both}")).output)
    assert again["epsilon"] == found["epsilon"] <= target == found["target"]
    assert found["epsilon"] >= 0.995 * target
    knob = catalogue.mechanism(flags.split()[0]).knob
    less = found["value"] * (1.01 if knob.down else 0.99)  # a little less noise is too little
    worse = CliRunner().invoke(cli, shlex.split(f"epsilon --{found['parameter']} {less!r} {both}"))
    assert json.loads(worse.output)["epsilon"] > 0.999 * target


def test_the_noise_is_told_in_units_of_the_clip(ask, call):
    found = ask("calibrate --mechanism laplace --epsilon 2 --delta 1e-5")
    assert found["std"] == pytest.approx(2**0.5 * found["value"]) and found["parameter"] == "noise"
    found = ask("calibrate --mechanism skellam --l1 8 --l2 4 --epsilon 2 --delta 1e-5")
    assert found["std"] == pytest.approx(found["value"] ** 0.5 / 4) and found["parameter"] == "mu"
    out = call("calibrate --mechanism gaussian --epsilon 2 --delta 1e-5")[1]
    assert "noise  1.99" in out and "clip bounds" in out and "of the 2 allowed" in out and "In total over 1 step" in out


def test_a_whole_number_is_the_least_safe_one(ask):
    flags = "--mechanism binomial --dim 4 --l1 8 --l2 4 --linf 4 --each-delta 1e-6 --delta 1e-5"
    found = ask(f"calibrate {flags} --epsilon 1")
    assert found["parameter"] == "trials" and found["value"] % 2 == 0 and found["epsilon"] <= 1
    assert ask(f"epsilon {flags} --trials {found['value'] - 2}")["epsilon"] > 1


def test_steps_are_the_most_that_fit(ask):
    flags = "--mechanism gaussian --noise 2 --rate 0.05 --delta 1e-5"
    found = ask(f"calibrate {flags} --epsilon 1 --find steps")
    assert found["parameter"] == "steps" and found["epsilon"] <= 1
    assert ask(f"epsilon {flags} --steps {found['value']}")["epsilon"] == found["epsilon"]
    assert ask(f"epsilon {flags} --steps {found['value'] + 1}")["epsilon"] > 1


def test_blocks_are_scaled_together(ask):
    blocks = '--block "noise=1 rate=0.01 steps=50" --block "noise=3 rate=0.1 steps=20"'
    found = ask(f"calibrate --mechanism gaussian {blocks} --epsilon 0.7 --delta 1e-5")
    first, second = (p["value"] for p in found["parameters"])
    assert second == pytest.approx(3 * first, rel=1e-5) and 0.995 * 0.7 <= found["epsilon"] <= 0.7
    twice = ask(f"calibrate --mechanism gaussian {blocks} --epsilon 3 --delta 1e-5 --find steps")
    assert twice["parameter"] == "times the whole schedule" and twice["steps"] == 70 * twice["value"]


def test_shuffled_reports_are_calibrated(ask):
    found = ask("calibrate --shuffle 3000 --epsilon 0.5 --delta 1e-5")
    assert found["parameter"] == "local-epsilon" and 0.995 * 0.5 <= found["epsilon"] <= 0.5
    assert found["value"] > 2.5  # whose epsilon is 0.376


@pytest.mark.parametrize(
    "flags",
    [
        "gaussian --rate 0.01 --steps 1000",
        "laplace --rate 0.01 --steps 1000",
        "gaussian --fixed-size 25 --population 1000 --steps 300",
        "skellam --l1 8 --l2 4 --rate 0.01 --steps 1000",
        "poisson-binomial --clients 100 --dim 4 --steps 10",
        "priv-unit --dim 100 --rate 0.1 --steps 100",
        'gaussian --block "rate=0.1 steps=10" --block "rate=0.2 noise=3 steps=30"',
    ],
)
def test_calibration_takes_less_than_a_second(flags):
    from sordino.cli import calibrate, events

    tightest.epsilon.cache_clear()
    given = {"mechanism": flags.split()[0], "total_delta": "1e-5", "blocks": ()}
    words = iter(shlex.split(flags)[1:])
    names = {p.flag: n for n, p in catalogue.all_params().items()}
    for word in words:
        flag, value = word.removeprefix("--"), next(words)
        key = "blocks" if flag == "block" else names.get(flag, flag.replace("-", "_"))
        given[key] = (*given["blocks"], value) if key == "blocks" else value
    asked = events.question(given)
    start = time.process_time()
    calibrate.find_noise(asked, 2.0)
    assert time.process_time() - start < 1.0
