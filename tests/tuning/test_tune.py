"""`sordino tune` from end to end: what it charges, what it publishes and what it keeps to itself."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sordino.cli.main import main
from sordino.core import faults
from sordino.data.clients import ArrayClients
from sordino.ledger import home
from sordino.ledger.ledger import Ledger
from sordino.measures import held_out
from sordino.measures.settings import Evaluation
from sordino.privacy.events import Parallel, RandomStopping
from sordino.privacy.tightest import epsilon
from sordino.run_folder.seal import check_seal
from sordino.runs.load import load
from sordino.spec import spec
from sordino.tuning import tune as tuning
from sordino.tuning.space import SearchRange, from_flags
from sordino.tuning.total import Search, priced

SMALL = ("--dataset", "small.npz", "--clients", 4, "--rounds", 2, "--epsilon", 4, "--device", "cpu")
SPACE = ("--search", "learning_rate=0.1:8:log", "--search", "clip=0.5,1")


@pytest.fixture
def call(small_npz, monkeypatch, capsys):
    """The command in this process: exit code, stdout, stderr."""

    def make(*args):
        monkeypatch.chdir(small_npz.parent)
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr("sys.argv", ["sordino", "tune", *map(str, (*SMALL, *SPACE, *args))])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return SimpleNamespace(returncode=code, **capsys.readouterr()._asdict())

    return make


def search(small_npz, disjoint=None, **keys):
    asked = {"dataset": str(small_npz), "clients": 4, "rounds": 2, "epsilon": 4.0, "device": "cpu"} | keys
    wanted = tuning.settled(spec.from_dict(asked), disjoint)
    return Search(wanted, from_flags(["learning_rate=0.1:8:log", "clip=0.5,1"]), 4, disjoint=disjoint)


def all_digits(range, uniform):
    return range.low * (range.high / range.low) ** uniform


def charges():
    with Ledger(home.registry(), "read") as book:
        return [entry for data in book.data() for entry in book.charges(data)]


def drawn(folder):
    return json.loads((folder / "private" / "tune.json").read_text())["drawn"]


def test_only_the_winner_leaves_and_one_charge_is_made(call, small_npz, monkeypatch):
    monkeypatch.setattr(tuning.selection, "draw", lambda *law: 3)
    monkeypatch.setattr(SearchRange, "draw", all_digits)  # a short rate may stand in a report by chance
    done = call("--name", "it", "--trials", 4, "--data-name", "mine")
    assert done.returncode == 0, done.err
    folder = small_npz.parent / "runs" / "it"
    assert done.out.index("Total, charged once") < done.out.index("Folder:") < done.out.index("Winner:")
    (charge,) = charges()
    assert (
        charge.viewer == "public" and 3.9 < charge.epsilon <= 4 and json.loads(charge.event)["kind"] == "RandomStopping"
    )
    assert (folder / "private").stat().st_mode & 0o777 == 0o700 and (folder / "private" / "trials.png").is_file()
    scored = json.loads((folder / "private" / "trials.json").read_text())
    assert len(scored) == len(list((folder / "private" / "trials").iterdir())) == 3
    about = json.loads((folder / "public" / "tune.json").read_text())
    assert about["settings"] == max(scored, key=lambda s: s["score"])["settings"]
    public = {p.name: p.read_bytes() for p in (folder / "public").iterdir()}
    assert set(public) == {
        "inputs.json",
        "model.safetensors",
        "plan.json",
        "records.jsonl",
        "report.html",
        "result.json",
        "seal.json",
        "spec.toml",
        "tune.json",
    }
    sealed = check_seal(folder, owner=True)
    assert sealed.well and sealed.head is not None and sealed.head[1] == 1
    assert {"tune.json", "trials.json"} <= json.loads((folder / "private" / "seal.json").read_text())["files"].keys()
    losers = [repr(s["settings"]["learning_rate"]) for s in scored if s["settings"] != about["settings"]]
    everything = b"".join(public.values()).decode(errors="replace") + done.out
    everything = re.sub("<script>.*?</script>", "", everything, flags=re.DOTALL)  # of the report
    assert min(map(len, losers)) > 12 and not any(text in everything for text in losers)
    result = json.loads(public["result.json"])
    assert result["together"].startswith("run 1 on these data (mine)")  # not the number of trials
    run = load(folder)
    assert run.guarantee.epsilon == charge.epsilon and math.isinf(run.guarantees["server"].epsilon)
    assert {record.epsilon["public"] for record in run.history} == {charge.epsilon}  # no round has a price of its own


def test_a_search_that_was_killed_goes_on_and_charges_nothing_twice(call, small_npz, monkeypatch):
    folder, trained = small_npz.parent / "runs" / "it", []
    monkeypatch.setattr(tuning.selection, "draw", lambda *law: 3)

    def crash(point):
        trained.append(point)
        if trained.count("merged") == 3:  # in the first round of the second trial
            raise KeyboardInterrupt

    faults.set_hook(crash)
    done = call("--name", "it")
    assert done.returncode == 130 and "--name it" in done.err
    before, first = drawn(folder), (folder / "private/trials/0000/public/model.safetensors").read_bytes()
    faults.set_hook(trained.append)
    monkeypatch.setattr(tuning.selection, "draw", lambda *law: 9)  # the number is not drawn again
    trained.clear()
    done = call("--name", "it")
    assert done.returncode == 0, done.err
    assert drawn(folder) == before and len(charges()) == 1
    assert (folder / "private/trials/0000/public/model.safetensors").read_bytes() == first
    assert trained.count("finishing") == 2  # of the two trials that were not finished
    assert call("--name", "it").returncode == 0 and len(charges()) == 1
    other = call("--name", "it", "--trials", 7)
    assert other.returncode == 2 and "holds another search (trials = 20, not 7)" in other.err


def test_a_dry_run_charges_nothing(call, small_npz):
    done = call("--dry-run", "--json")
    tune = json.loads(done.out)["tune"]
    assert 1 < tune["trial_epsilon"] < 2 and tune["total"]["epsilon"] <= 4
    assert not home.registry().is_file() and not (small_npz.parent / "runs").exists()


def test_the_budget_of_a_trial_is_the_largest_that_fits(small_npz):
    asked = search(small_npz)
    plan = priced(asked)
    assert isinstance(plan.cost.event, RandomStopping) and plan.cost.event.mean == 4
    assert 0.997 * 4 <= plan.epsilon == epsilon(plan.cost.event, 1e-5) <= 4
    dearer = asked.of_trials(asked.trial(1.01 * plan.budget, {}))
    assert epsilon(dearer, 1e-5) > 4


def test_disjoint_trials_and_final_run_share_no_record(small_npz):
    asked = search(small_npz, 0.3)
    plan = priced(asked)
    assert isinstance(plan.cost.event, Parallel) and plan.cost.event.by_place and plan.cost.viewer == "server"
    costs = [epsilon(part, 1e-5) for part in plan.cost.event.events]
    assert plan.epsilon == max(costs) <= 4 and min(costs) > 0.99 * 4
    x = torch.arange(40.0)[:, None]
    clients, wanted = ArrayClients(x, torch.zeros(40), [25, 15]), spec.from_dict({"tuning": 0.3})
    trials = held_out.tuning_part(wanted, clients).x
    final = held_out.split(wanted, wanted.method_object(), clients, Evaluation())[0].x
    assert 4 < len(trials) < 20 and np.array_equal(np.sort(torch.cat([trials, final])[:, 0].numpy()), x[:, 0].numpy())


def test_disjoint_from_the_command_line(call, small_npz):
    done = call("--name", "it", "--trials", 2, "--disjoint", 0.3)
    assert done.returncode == 0, done.err
    assert "not their sum" in done.out and len(charges()) == 1 and charges()[0].viewer == "server"
    run = load(small_npz.parent / "runs" / "it")
    assert run.guarantee.viewer == "server" and run.guarantee.epsilon <= 4 and len(run.history) == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--viewer", "server"), "sees all of them"),
        (("--method", "none", "--search", "momentum=0.5,0.9"), "clip"),
        (("--search", "batch_rate=0.1,0.5"), "costs more"),
        (("--trials", "1"), "at least 2"),
        (("--law", "uniform"), "geometric"),
        (("--disjoint", "1.5"), "between 0 and 1"),
        (("--parallel", "0"), "at least 1"),
        (("--mode", "secure", "--seed", "1"), "accepts no seed"),
    ],
)
def test_a_bad_search_is_one_clear_line_and_changes_nothing(call, small_npz, args, words):
    done = call(*args)
    assert done.returncode == 2 and words in done.err and done.err.count("\n") == 1, done.err
    assert not (small_npz.parent / "runs").exists() and not home.registry().is_file()


def test_a_method_without_a_finite_epsilon_is_refused(small_npz):
    asked = search(small_npz, method="nbafl-paper")
    with pytest.raises(tuning.SpecError, match="no finite epsilon"):
        priced(asked)


def test_a_run_ignores_the_table_of_the_search(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("epsilon = 3.0\n[tune]\nclip = [0.5]\n")
    assert spec.read(path) == {"epsilon": 3.0} and spec.read_tune(path) == {"clip": [0.5]}


@pytest.mark.slow
def test_processes_find_the_same_winner(call, small_npz):
    for name, processes in (("one", 1), ("two", 2)):
        done = call("--name", name, "--seed", 3, "--trials", 3, "--parallel", processes)
        assert done.returncode == 0, done.err
    one, two = (json.loads((small_npz.parent / "runs" / n / "public/tune.json").read_text()) for n in ("one", "two"))
    assert one == two
