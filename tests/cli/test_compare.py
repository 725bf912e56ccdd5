"""`sordino compare` as people and programs meet it."""

import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from sordino.cli.compare import Board, _overrides
from sordino.cli.main import main
from sordino.comparisons import compare
from sordino.comparisons.compare import News
from sordino.core.errors import SpecError
from sordino.core.rounding import up
from sordino.report import cells as reading
from sordino.report.summary import lines
from sordino.report.tables import PRINTED

COMMON = ("--dataset", "small.npz", "--features", "none", "--clients", 8, "--learning-rate", 0.5, "--device", "cpu")


@pytest.fixture
def call(small_npz, monkeypatch, capsys):
    """The command in this process: exit code, stdout, stderr."""

    def make(*args):
        monkeypatch.chdir(small_npz.parent)
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr("sys.argv", ["sordino", "compare", *map(str, (*COMMON, *args))])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return SimpleNamespace(returncode=code, **capsys.readouterr()._asdict())

    return make


def rows(path):
    """results.csv without the time that cells took."""
    found = list(csv.DictReader(io.StringIO(path.read_text())))
    return [{k: v for k, v in row.items() if k != "seconds"} for row in found]


def test_one_command_leaves_tables_and_figures(call, small_npz):
    args = ("--methods", "none,dp-sgd,dp-fedavg", "--epsilon", "2,8", "--seeds", 1, "--rounds", 2, "--name", "it")
    done = call(*args, "--set", "dp-sgd.clip=0.5")
    assert done.returncode == 0, done.out + done.err
    folder = small_npz.parent / "runs" / "it"
    assert {p.name for p in (folder / "public").iterdir()} >= {
        "results.csv",
        "summary.csv",
        "table.md",
        "accuracy.png",
    }
    assert len(list((folder / "cells").iterdir())) == len(rows(folder / "public" / "results.csv")) == 5
    assert done.out.splitlines()[-1] == f"Report: {folder.relative_to(small_npz.parent) / 'public' / 'report.html'}"
    assert "Unit client (add/remove)" in (folder / "public" / "report.html").read_text()
    assert "5/5 cells" in done.out and "left" not in done.out  # how long it takes is the owner's on private data
    assert "Unit record (add/remove), against the server" in done.out
    assert "must not be ranked against each other" in done.out.replace("\n", " ")
    spec = (folder / "cells" / "dp-sgd-eps2-seed0" / "private" / "spec.toml").read_text()
    assert "clip = 0.5" in spec and "seed = 0" in spec and "epsilon = 2.0" in spec
    assert "clip = 0.5" not in (folder / "cells" / "dp-fedavg-eps2-seed0" / "private" / "spec.toml").read_text()


def test_a_printed_form_stands_unranked_with_claim_and_accounted_epsilon(call, small_npz):
    args = ("--epsilon", 4, "--seeds", 1, "--rounds", 2, "--name", "p")
    done = call("--methods", "nbafl-paper,dp-sgd", *args)
    assert done.returncode == 0, done.out + done.err
    folder = small_npz.parent / "runs" / "p"
    result = json.loads((folder / "cells" / "nbafl-paper-eps4-seed0" / "public" / "result.json").read_text())
    accounted, claim = up(result["guarantee"]["epsilon"]), result["claim"]
    assert result["guarantee"]["epsilon"] > 10 * 4 and claim["epsilon"] == 4  # the claim does not hold
    ranked, printed = (folder / "public" / "table.md").read_text().split(f"## {PRINTED}")
    assert "| dp-sgd |" in ranked and "nbafl-paper" not in ranked and "dp-sgd" not in printed
    head, row = (
        [c.strip() for c in line.strip("|").split("|")]
        for line in printed.splitlines()
        if line.startswith(("| method", "| nbafl-paper"))
    )
    told = dict(zip(head, row, strict=True))
    assert (told["claimed epsilon"], told["accounted"]) == ("4", accounted)
    assert told["claimed for"] == f"{claim['unit']} against the {claim['viewer']}" == "record against the server"
    assert (told["unit"], told["viewer"]) == (result["guarantee"]["unit"], "server")
    assert "rank" not in head and claim["why_not"] in printed and accounted in done.out
    summed = {r["method"]: r for r in csv.DictReader(io.StringIO((folder / "public" / "summary.csv").read_text()))}
    assert (summed["nbafl-paper"]["kind"], summed["nbafl-paper"]["rank"]) == ("printed", "")
    assert (summed["dp-sgd"]["kind"], summed["dp-sgd"]["rank"]) == ("sound", "1")


def test_a_failing_cell_is_told_and_the_exit_code_is_one(call, small_npz):
    charged = ("--validation", 0.25, "--evaluate-on", "validation", "--release-noise", 20, "--evaluate-every", 1)
    done = call("--methods", "dp-sgd", "--epsilon", "0.01,8", "--seeds", 1, "--rounds", 2, "--json", *charged)
    assert done.returncode == 1, done.err
    found = json.loads(done.out)
    assert list(found["failures"]) == ["dp-sgd-eps0.01-seed0"]
    kinds = {row["epsilon"]: (row["kind"], row["n"], row["accounted_epsilon"]) for row in found["results"]}
    assert kinds[0.01] == ("failed", 0, None) and kinds[8.0][:2] == ("sound", 1)
    assert "table.md" in found["files"]
    text = (small_npz.parent / found["folder"] / "public" / "table.md").read_text()
    assert "Cells that failed" in text and "BudgetError: evaluations" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--methods", "dp-sgd,dp-sdg"), "Did you mean 'dp-sgd'?"),
        (("--methods", "dp-sgd", "--quantile", 0.5), "it belongs to dp-fedavg"),
        (("--methods", "dp-sgd", "--epsilon", "1,x"), "epsilon must be a number, not 'x'"),
        (("--methods", "dp-sgd", "--epsilon", "1,,2"), "not '1,,2'"),
        (("--methods", "dp-sgd", "--jobs", 0), "jobs must be at least 1"),
        (("--methods", "dp-sgd", "--jobs", 2, "--federation", "workers"), "cannot start those of federation = workers"),
        (("--methods", "dp-sgd", "--set", "dp-fedavg.clip=1"), "not among the methods"),
        (("--methods", "dp-sgd", "--set", "dp-sgd.clip=x"), "clip must be a number"),
        (("--methods", "dp-sgd", "--label-column", "y"), "dp-sgd: "),
        (("--methods", "dp-sgd", "--name", "a/b"), "name must be"),
    ],
)
def test_bad_input_leaves_nothing_behind(call, small_npz, args, words):
    done = call(*args)
    assert done.returncode == 2 and words in done.err, done.err
    assert done.err.count("\n") == 1 and "Traceback" not in done.err
    assert not (small_npz.parent / "runs").exists()


@pytest.mark.slow
def test_a_comparison_that_is_really_killed_goes_on(sordino_command, small_npz):
    def call(*args, **keys):
        return sordino_command("compare", *COMMON, *args, cwd=small_npz.parent, **keys)

    args = ("--methods", "dp-sgd,dp-fedavg", "--epsilon", 4, "--seeds", 1, "--rounds", 30, "--checkpoint-seconds", 0.01)
    runs = small_npz.parent / "runs"
    assert call(*args, "--name", "whole", "--json").returncode == 0
    at = {"file": str(runs / "it" / "cells" / "dp-fedavg-eps4-seed0" / "public" / "records.jsonl"), "kill": 8}
    assert call(*args, "--name", "it", "--json", **at).returncode == -9
    assert not (runs / "it" / "public" / "results.csv").exists()
    done = call(*args, "--name", "it")
    assert done.returncode == 0, done.stderr
    assert "1 of 2 cells were finished before" in done.stdout
    assert rows(runs / "it" / "public" / "results.csv") == rows(runs / "whole" / "public" / "results.csv")


# --- what is parsed and shown


def test_keys_of_one_method_are_typed_as_that_method_has_them():
    found = _overrides(
        ["dp-sgd.clip=0.5", "dp-fedavg.adaptive-clip=true", "dp-sgd.local-steps = 3"], ["dp-sgd", "dp-fedavg"]
    )
    assert found == {"dp-sgd": {"clip": 0.5, "local_steps": 3}, "dp-fedavg": {"adaptive_clip": True}}


@pytest.mark.parametrize(
    "text", ["clip=1", "dp-sgd.clip", "dp-sgd.=1", "dp-sgd.nothing=1", "dp-sgd.clip=1,dp-sgd.clip=2"]
)
def test_a_setting_that_cannot_be_read_is_refused(text):
    with pytest.raises(SpecError):
        _overrides(text.split(",") if text.count("clip") == 2 else [text], ["dp-sgd"])


@pytest.fixture
def board():
    """A board with a clock that we set, and four cells: two of dp-sgd, two of dp-fedavg."""
    now = [0.0]
    made = Board(console=Console(file=io.StringIO(), width=120, force_terminal=True), clock=lambda: now[0])
    found = compare.cells(["dp-sgd", "dp-fedavg"], [2.0], 2, {}, {})
    made.cells, made.jobs = {c.name: c for c in found}, 1
    return made, now


def test_a_regression_is_told_by_its_error(board):
    made, _ = board
    made.hear(News("dp-sgd-eps2-seed0", "began"))
    made.hear(News("dp-sgd-eps2-seed0", "done", rmse=0.25))
    made.hear(News("dp-sgd-eps2-seed1", "done", rmse=0.35))
    made.console.print(made.table())
    text = made.console.file.getvalue()
    assert "mean rmse" in text and " 0.3 " in text and "accuracy" not in text
    assert made._how(News("dp-sgd-eps2-seed0", "done", rmse=0.25)).startswith("rmse 0.25, ")


@pytest.mark.parametrize("width", [40, 60, 90, 130, 220])
def test_no_terminal_is_too_narrow_for_a_number(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, highlight=False, soft_wrap=True)
    made = Board(console=console)
    whom = {"unit": "record", "relation": "add/remove", "viewer": "server", "channel": "direct"}
    claim = reading.ClaimLine(2.0, unit="record", why_not="because")
    cells = [
        reading.CellResult(
            "a", "a-method-with-a-long-name", 2.0, s, "", 0.71234 + s / 100, 1.0234, accounted=2.0, **whom
        )
        for s in range(3)
    ]
    cells += [reading.CellResult("b", "other-paper", 2.0, 0, accuracy=0.5, accounted=12345.678, claim=claim, **whom)]
    made.results(lines(cells))
    text = made.console.file.getvalue()
    for word in ("a-method-with-a-long-name", "72.23 ± 1.00", "1.02", "other-paper", "12345.678"):
        assert word in text


def test_time_left_comes_from_finished_cells_of_the_same_method(board):
    made, now = board
    assert made.time_left() is None
    for name, seconds in (("dp-sgd-eps2-seed0", 10.0), ("dp-fedavg-eps2-seed0", 30.0)):
        made.hear(News(name, "began"))
        now[0] += seconds
        made.hear(News(name, "done", accuracy=0.5))
    assert made.time_left() == 40.0  # 10 + 30
    made.hear(News("dp-sgd-eps2-seed1", "began"))
    now[0] += 4.0
    assert made.time_left() == 36.0
    made.jobs = 2
    assert made.time_left() == 18.0


def test_the_live_table_shows_rounds_means_and_failures(board):
    made, _ = board
    made.hear(News("dp-sgd-eps2-seed0", "done", accuracy=0.8))
    made.hear(News("dp-sgd-eps2-seed1", "round", 3, 20, 0.4))
    made.hear(News("dp-fedavg-eps2-seed0", "failed", reason="no"))
    made.console.print(made.table())
    text = made.console.file.getvalue()
    assert "2/4 cells" in text and "seed 1: round 3/20" in text and "80.00" in text and "0/2, 1 failed" in text


def test_a_regression_has_its_errors_in_table_and_picture(call, small_npz):
    with np.load(small_npz) as found:
        data = {k: found[k] for k in ("x_train", "x_test")}
    y = {f"y_{k}": data[f"x_{k}"][:, 0] * 0.5 for k in ("train", "test")}
    np.savez(small_npz, **data, **y)
    done = call("--methods", "none,dp-sgd", "--epsilon", "4", "--seeds", 2, "--rounds", 2, "--name", "r")
    assert done.returncode == 0, done.out + done.err
    folder = small_npz.parent / "runs" / "r"
    assert (folder / "public" / "rmse.png").is_file() and not (folder / "public" / "accuracy.png").exists()
    told = [r for r in rows(folder / "public" / "results.csv") if r["method"] == "dp-sgd"]
    results = [json.loads((folder / "cells" / r["cell"] / "public" / "result.json").read_text()) for r in told]
    assert [float(r["rmse"]) for r in told] == [r["metrics"]["rmse"] for r in results]
    assert "| rmse | mae |" in (folder / "public" / "table.md").read_text() and ": none-seed0 rmse " in done.out
