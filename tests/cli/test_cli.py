"""The command as people and programs meet it, each in a process of its own."""

import json
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from sordino.spec import spec, toml
from support.errors import one_line

TOML = """
dataset = "small.npz"
features = "none"
clients = 8
rounds = 3
epsilon = 4.0
learning_rate = 0.5
device = "cpu"
mode = "research"
"""


@pytest.fixture
def here(small_npz):
    (small_npz.parent / "small.toml").write_text(TOML)
    return small_npz.parent


def no_folder(here):
    return not (here / "runs").exists() or not list((here / "runs").iterdir())


def test_run_prints_one_json_object(call, here):
    done = call("run", "small.toml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["guarantee"]["epsilon"] <= 4.0 and found["guarantee"]["viewer"] == "server"
    assert found["rounds"] == 3 and 0 <= found["accuracy"] <= 1 and found["plan"]["noise_multiplier"] > 0
    folder = here / found["folder"]
    public, private = ({p.name for p in (folder / part).iterdir()} for part in ("public", "private"))
    assert public == {
        "spec.toml", "inputs.json", "plan.json", "records.jsonl", "model.safetensors", "result.json",
        "accounting.json", "seal.json", "report.html",
    }  # fmt: skip
    assert private >= {"spec.toml", "job.json", "ledger.json", "records.jsonl", "checkpoint.safetensors"}
    assert json.loads((folder / "public" / "result.json").read_text())["guarantee"] == found["guarantee"]


def test_run_tells_a_person_the_guarantee(call):
    done = call("run", "small.toml")
    assert done.returncode == 0, done.stderr
    for words in ("epsilon = 4", "any single record", "delta = 1e-05", "Run folder:", "Accuracy with privacy", "seed"):
        assert words in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_flags_win_over_the_file_and_the_folder_keeps_both(call, here):
    flags = ("--epsilon", "1.5", "--rounds", "2", "--method", "dp-fedavg", "--clip", "0.25", "--adaptive-clip")
    done = call("run", "small.toml", *flags, "--name", "mine", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rounds"] == 2 and found["guarantee"]["epsilon"] <= 1.5 and found["plan"]["method"] == "dp-fedavg"
    stored = tomllib.loads((here / "runs" / "mine" / "private" / "spec.toml").read_text())
    assert (stored["clip"], stored["adaptive_clip"], stored["learning_rate"]) == (0.25, True, 0.5)
    assert spec.from_dict(stored).epsilon == 1.5


def test_a_seed_repeats_a_run_and_another_does_not(call, here):
    models = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert call("run", "small.toml", "--name", name, "--seed", seed, "--json").returncode == 0
        models.append((here / "runs" / name / "public" / "model.safetensors").read_bytes())
    assert models[0] == models[1] != models[2]


@pytest.mark.parametrize("name", ["it", "x" * 64])
def test_baseline_trains_a_benchmark_without_privacy_too(name, call, data_file, here):
    """However long the name is: the private run has been paid for by then."""
    folder = data_file("breast_cancer_wdbc/breast_cancer.csv.gz").parents[1]
    flags = ("--clients", "5", "--rounds", "3", "--device", "cpu", "--baseline", "--json", "--name", name)
    done = call("run", "--dataset", "breast-cancer", "--data-dir", folder, *flags)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["accuracy_without_privacy"]
    public = here / "runs" / name / "public"
    kept = json.loads((public / "baseline.json").read_text())
    assert 0 <= said <= 1 and kept["accuracy"] == said == kept["curve"]["accuracy"][-1]
    assert kept["curve"]["round"][-1] == kept["rounds"] == 3
    hashes = json.loads((public / "seal.json").read_text())["files"]
    assert hashes["baseline.json"] == sha256((public / "baseline.json").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        (("--epsilon", "-1"), "SpecError", ("epsilon must be positive",)),
        (("--epsilon", "nan"), "SpecError", ("epsilon must be finite",)),
        (("--epsilon", "1e400"), "SpecError", ("epsilon must be finite",)),
        (("--epsilon", "two"), "SpecError", ("epsilon must be a number", "'two'")),
        (("--rounds", "2.5"), "SpecError", ("rounds must be a whole number",)),
        (("--method", "dp-fedavgg"), "SpecError", ("Did you mean 'dp-fedavg'?",)),
        (("--quantile", "0.5"), "SpecError", ("belongs to dp-fedavg, not to dp-sgd",)),
        (("--name", "../../x"), "SpecError", ("name must be",)),
        (("--mode", "secure", "--seed", "1"), "SpecError", ("accepts no seed",)),
        (("--batch-size", "1000"), "SpecError", ("batch_size 1000 is larger",)),
        (("--dataset", "none.npz"), "DataError", ("no dataset 'none.npz'",)),
        (("--clients", "1000"), "DataError", ("cannot give each of 1000 clients",)),
        (("--model", "cnn"), "ModelError", ("the cnn needs pictures",)),
        (("--model", "cmn"), "SpecError", ("Did you mean 'cnn'?",)),
        (("--features", "scattering"), "DataError", ("uint8 pictures",)),
        (("--method", "dp-fedavg", "--viewer", "server"), "BudgetError", ("viewer = public", "dp-sgd")),
        (("--method", "dp-fedavg", "--adaptive-clip", "--count-noise", "0.01"), "SpecError", ("count_noise",)),
        (("--out", "small.toml"), "RunError", ("cannot make a run folder",)),
    ],
)
def test_an_error_is_one_line_and_leaves_no_folder(args, kind, words, call, here):
    one_line(call("run", "small.toml", *args), kind, *words)
    assert no_folder(here)


@pytest.mark.parametrize("args", [("run", "small.toml", "--ledger"), ("explain",)])
def test_a_name_too_long_for_a_file_is_one_line(args, call, here):
    before = sorted(here.iterdir())
    one_line(call(*args, "x" * 300), "File name too long", "xxx", "characters)")
    one_line(call("run", "small.toml", "--out", "x" * 300), "RunError", "cannot make a run folder", "name too long")
    assert sorted(here.iterdir()) == before


def test_a_broken_file_is_one_line(call, here):
    (here / "small.toml").write_text("epsilon = 1\nepsilon = 2\n")
    one_line(call("run", "small.toml"), "SpecError", "small.toml is not valid TOML")
    (here / "small.toml").write_text("epsilom = 1\n")
    one_line(call("run", "small.toml"), "SpecError", "Did you mean 'epsilon'?")
    one_line(call("run", "missing.toml"), "SpecError", "cannot read missing.toml")
    assert no_folder(here)


def test_an_unknown_flag_or_command_names_what_there_is(call):
    done = call("run", "--epsilom", "1")
    assert done.returncode == 2 and "--epsilon" in done.stderr and "Traceback" not in done.stderr
    done = call("rum")
    assert done.returncode == 2 and "There are: run" in done.stderr


def test_methods_are_listed_for_people_and_programs(call):
    found = json.loads(call("methods", "--json").stdout)
    rows = {r["method"]: r for r in found["methods"]}
    assert rows["dp-sgd"]["units"] == ["record", "user"] and rows["dp-sgd"]["protects_from"] == ["server", "public"]
    assert rows["dp-fedavg"]["units"] == ["client", "user"] and rows["dp-fedavg"]["protects_from"] == ["public"]
    assert rows["none"]["protects_from"] == rows["none"]["units"] == []
    assert {r["algorithm"]: r["options"] for r in found["algorithms"]}["fedprox"] == {"mu": 0.01}
    assert rows["dp-fedavg"]["options"]["quantile"] == 0.5
    assert "protects no one" in call("methods").stdout


def test_init_writes_a_file_that_runs_and_never_overwrites(call, here):
    done = call("init")
    assert done.returncode == 0 and "sordino run sordino.toml" in done.stdout
    assert (here / "sordino.toml").read_text() == toml.template()
    (here / "sordino.toml").write_text("mine")
    one_line(call("init"), "RunError", "exists already")
    assert (here / "sordino.toml").read_text() == "mine"
    assert call("init", "other.toml").returncode == 0 and (here / "other.toml").exists()
    one_line(call("init", "no/such/folder.toml"), "RunError", "cannot write")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_one_line(shell, call):
    done = call("completion", shell)
    assert done.returncode == 0 and done.stdout.count("\n") == 1 and f"{shell}_source" in done.stdout


def test_resume_wants_a_run(call, here):
    one_line(call("resume", "runs/none"), "RunError", "there is no run folder")
    (here / "empty").mkdir()
    one_line(call("resume", "empty"), "RunError", "job.json is missing")
    assert call("resume").returncode == 2


def test_resuming_a_finished_run_gives_its_result_again(call, here):
    first = call("run", "small.toml", "--name", "it", "--json")
    again = call("resume", "runs/it", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["guarantee"] == json.loads(first.stdout)["guarantee"]


def test_a_run_from_python_is_resumed_from_python(call, here):
    import sordino
    from support.problems import federation, linear

    sordino.train(linear(), federation(), rounds=1, out=str(here / "runs"), name="own", device="cpu")
    one_line(call("resume", "runs/own"), "RunError", "started from Python", "resume=")


def test_version(call):
    from sordino import __version__

    assert __version__ in call("--version").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("args", [["--version"], ["completion", "bash"], ["run", "--help"]])
def test_a_full_disk_behind_the_output_is_one_line(args):
    command = [sys.executable, "-c", "from sordino.cli.main import main; main()", *args]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("sordino: No space left on device, where")


def test_a_run_is_resumed_from_another_folder(call, here, sordino_command, tmp_path_factory):
    done = call(
        "run", "--dataset", "small.npz", "--clients", "8", "--rounds", "2", "--name", "it", "--out", str(here / "o")
    )
    assert done.returncode == 0, done.stderr
    other = tmp_path_factory.mktemp("other")
    done = sordino_command("resume", str(here / "o" / "it"), cwd=other)
    assert done.returncode == 0, done.stderr


def test_an_algorithm_is_no_method(call):
    one_line(call("run", "--method", "scaffold"), "SpecError", "use --algorithm scaffold")
