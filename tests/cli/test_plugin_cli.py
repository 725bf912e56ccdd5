"""A method of one's own, from one file: the one that docs/methods.md walks through, through CLI, ledger and compare."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import sordino as sordino_package
from sordino.cli import methods
from sordino.cli.main import main
from sordino.core import plugin
from sordino.core.errors import SpecError
from sordino.spec import spec
from support.problems import federation, linear

DOCS = Path(__file__).parent.parent.parent / "docs" / "methods.md"
COMMAND = str(Path(sys.executable).with_name("sordino"))
ALONE = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


def example() -> str:
    """The file that the docs show."""
    (found,) = re.findall(r"```python\n# plugins/methods/boxed.py\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    return found


@pytest.fixture
def plugins(tmp_path):
    folder = tmp_path / "plugins" / "methods"
    folder.mkdir(parents=True)
    (folder / "boxed.py").write_text(example())
    return tmp_path / "plugins"


@pytest.fixture
def known(plugins, monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, str(plugins))
    return plugins


@pytest.mark.slow
def test_it_runs_is_charged_and_compared(tmp_path, plugins, sordino_command):
    env = {plugin.VARIABLE: str(plugins)}

    def sordino(*args):
        return sordino_command(*args, cwd=tmp_path, env=env)

    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 240)
    x = (rng.normal(size=(240, 5)) + 2 * y[:, None]).astype(np.float32)
    np.savez(tmp_path / "d.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:], classes=3)
    common = ("--dataset", "d.npz", "--clients", "10", "--rounds", "2")
    flags = ("--method", "boxed", "--box", "0.02", "--epsilon", "8")  # --box is known where it is at the start
    done = subprocess.run([COMMAND, "run", *flags, *common, "--json"], cwd=tmp_path, env=os.environ | env | ALONE,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["guarantee"]["unit"] == "client" and 7.9 < told["guarantee"]["epsilon"] <= 8
    shown = sordino("ledger", "show", "--json")
    assert shown.returncode == 0 and "boxed" in shown.stdout
    both = sordino("compare", "--methods", "boxed,nbafl", "--epsilon", "8", "--seeds", "1", *common, "--name", "c",
                   "--json")  # fmt: skip
    assert both.returncode == 0, both.stderr
    rows = json.loads(both.stdout)["results"]
    assert {r["method"] for r in rows} == {"boxed", "nbafl"} and all(r["rank"] in (1, 2) for r in rows)


def test_its_fields_are_keys_and_its_laws_those_of_all(known):
    assert "boxed" in plugin.available("methods")
    wanted = spec.from_dict({"method": "boxed", "box": 0.5})
    assert wanted.method_object().box == 0.5
    assert spec.plugin_help("methods", "boxed")["box"] == "b: bound on every coordinate of an update"
    with pytest.raises(SpecError, match="box must be"):
        spec.from_dict({"method": "boxed", "box": -1.0})


def test_the_folder_itself_is_told_apart_from_the_one_above(plugins, monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, str(plugins / "methods"))
    with pytest.raises(SpecError, match="in which there is no folder methods; name the folder above it"):
        plugin.load("methods", "boxed")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("local_sgd(state", "local_sgd(state", ""),
        ("local_sgd(state", "1 + local_sgd(state", "RunError: boxed.train fails (boxed.py, line "),
        ("](boxed)", "](boxed)[1:]", "boxed.train must return rows [4, ...] as the field update, not [3, "),
        ('site.out["update"](boxed)', "boxed.value", "boxed: the release update was declared and its outlet was never"),
        (
            "](boxed)",
            "](boxed) + boxed.value",
            "boxed: the field update depends on the clients' records past the outlets",
        ),
        ("self.box, self.box)", "9, 9)", "which declares the bound"),
        (
            "](boxed)}",
            "](boxed)}, update.norm(dim=1)",
            "boxed: the weights of a message depend on the clients' records",
        ),
        (
            "    def train(",
            "    def variables(self, *args):\n        return 1 / 0\n\n    def train(",
            "fails (boxed.py, line ",
        ),
    ],
)
def test_what_fails_in_a_run_is_one_line_and_charges_nothing(known, small_npz, monkeypatch, capsys, old, new, words):
    (known / "methods" / "boxed.py").write_text(example().replace(old, new))
    monkeypatch.chdir(small_npz.parent)
    common = ("--dataset", "small.npz", "--clients", "8", "--rounds", "1", "--epsilon", "8", "--device", "cpu")
    monkeypatch.setattr("sys.argv", ["sordino", "run", "--method", "boxed", *common])
    if not words:
        main()
        return
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1 and not (small_npz.parent / "runs").exists()


def test_without_the_variable_it_is_not_there():
    with pytest.raises(SpecError, match="unknown method 'boxed'"):
        plugin.load("methods", "boxed")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no')", "fails: ValueError: no"),
        ("import nothing_like_that", "fails: ModuleNotFoundError"),
        ("x = 1", "must name the one class it exports"),
        ("def broken(:", "fails: SyntaxError"),
    ],
)
def test_a_broken_file_is_one_clear_error(known, text, message):
    (known / "methods" / "bad.py").write_text(text)
    with pytest.raises(SpecError, match=message):
        plugin.load("methods", "bad")


def test_a_broken_file_stops_only_who_asks_for_it(known):
    (known / "methods" / "bad.py").write_text("def broken(:")
    with pytest.warns(UserWarning, match="left out: the plug-in .*bad.py fails: SyntaxError"):
        names = plugin.loadable("methods")
    assert "boxed" in names and "bad" not in names and "bad" in plugin.available("methods")
    (known / "methods" / "bad.py").write_text(example().replace("box: float = 0.01", "rounds: int = 5"))
    with pytest.warns(UserWarning, match="left out: the plug-in bad has an option 'rounds', which is a key of every"):
        assert spec.owners("momentum_of_nobody") == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Gaussian(plan.z)", "plan.z", r"bad\.releases: the mechanism of update must have `apply` and `event`, unlike"),
        ("return (Rel", "return 1 / 0, (Rel", r"bad\.releases fails \(bad\.py, line \d+\): ZeroDivisionError"),
        ("return (Rel", "from sordino.core.errors import SpecError; raise SpecError('no'); return (Rel", r"bad.*: no"),
    ],
)
def test_releases_of_one_do_not_hide_the_others(known, old, new, words):
    text = example()
    assert old in text
    (known / "methods" / "bad.py").write_text(text.replace(old, new))
    with pytest.warns(UserWarning, match=f"left out: {words}"):
        found = {row["method"]: row for row in methods._methods()}
    assert "bad" not in found and "dp-sgd" in found
    assert found["boxed"]["units"] == ["client"] and "server" in found["boxed"]["protects_from"]


def test_a_client_without_decisions_of_its_own_is_one_line(known, small_npz, monkeypatch, capsys):
    """Also where the record, of an earlier version, has something else in the place of clients; and bad words."""
    spoilt = example().replace(
        "    def train(",
        "    def decided(self, state, plan):\n        return {'a': 1}\n\n"
        "    def explain(self, rounds):\n        return None\n\n    def train(",
    )
    (known / "methods" / "boxed.py").write_text(spoilt)
    monkeypatch.chdir(small_npz.parent)
    common = ("--dataset", "small.npz", "--clients", "8", "--rounds", "1", "--epsilon", "8", "--device", "cpu")
    monkeypatch.setattr("sys.argv", ["sordino", "run", "--method", "boxed", *common, "--name", "it"])
    main()
    records = Path("runs/it/private/records.jsonl")
    records.write_text(records.read_text().replace('{"a": 1}', '{"clients": 5}'))
    assert '"clients": 5' in records.read_text()
    capsys.readouterr()
    for more, words in (
        (["--client", "0"], "makes no decisions for single clients"),
        ([], "must return a list of text"),
    ):
        monkeypatch.setattr("sys.argv", ["sordino", "explain", "runs/it", "--owner", *more])
        with pytest.raises(SystemExit, match="2"):
            main()
        told = capsys.readouterr().err
        assert words in told and told.count("\n") == 1


def test_nobody_takes_our_names_or_each_others(known, tmp_path, monkeypatch):
    (known / "methods" / "dp_sgd.py").write_text(example())
    with pytest.raises(SpecError, match="the name of one of ours"):
        plugin.load("methods", "dp-sgd")
    other = tmp_path / "more" / "methods"
    other.mkdir(parents=True)
    (other / "boxed.py").write_text(example())
    monkeypatch.setenv(plugin.VARIABLE, f"{known}{os.pathsep}{tmp_path / 'more'}")
    with pytest.raises(SpecError, match="two plug-ins are called boxed"):
        plugin.available("methods")
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(SpecError, match="which is not a folder"):
        plugin.available("methods")


def test_an_entry_point_does_the_same(plugins, monkeypatch):
    monkeypatch.syspath_prepend(str(plugins / "methods"))
    entry = EntryPoint("boxed", "boxed:Boxed", "sordino.methods")
    monkeypatch.setattr(plugin, "_entries", lambda kind: {"boxed": entry} if kind == "methods" else {})
    assert plugin.load("methods", "boxed").__name__ == "Boxed"
    assert spec.from_dict({"method": "boxed"}).method_object().box == 0.01
    sys.modules.pop("boxed")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class Boxed(Method)", "class Boxed", "derives from Method"),
        ("@dataclass(frozen=True)\nclass Boxed", "class Boxed", "derives from Method"),
        ("box: float = 0.01", "box: float", "its option box needs a default"),
        ('= ("client",)', '= ("person",)', "protects a 'person'; units are record, client, user"),
        ("box: float = 0.01", "rounds: int = 5", "has an option 'rounds', which is a key of every run"),
        ('= ("client",)', "= 5", "units must be a tuple of text, .* not 5"),
        ('= ("client",)', '= "client"', "units must be a tuple of text, .* not 'client'"),
        ('= ("client",)', "= ()", "units must name at least one"),
        ("    box: float", "    channels = 5\n    box: float", "channels must be a tuple of text, .* not 5"),
        ("    box: float", "    channels = ()\n    box: float", "channels must name at least one"),
        (
            '= ("fedavg",)',
            "= (1,)",
            r"algorithms must be a tuple of text, .* not \(1,\)",
        ),
    ],
)
def test_a_class_that_cannot_be_used_is_one_error(known, old, new, message):
    text = example()
    assert old in text
    (known / "methods" / "odd.py").write_text(text.replace(old, new).replace("self.box", "0.1"))
    with pytest.raises(SpecError, match=message):
        spec.from_dict({"method": "odd"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"client", bound', '"clients", bound', "odd.releases: unit 'clients' is not known"),
        ("return (Release(", "return plan.nothing, (Release(", "releases fails.*AttributeError"),
        ("return (Release(", "return 3, (Release(", "releases must return a tuple of Release"),
        ("bound=self.box * math.sqrt(plan.dim)", "bound=None", "releases: the release update needs a bound"),
        (
            "Gaussian(plan.z)",
            "plan.z",
            "releases: the mechanism of update must have `apply` and `event`, unlike a float",
        ),
    ],
)
def test_releases_that_mean_nothing_are_refused_before_anything_is_spent(known, old, new, message, tmp_path):
    text = example()
    assert old in text
    (known / "methods" / "odd.py").write_text(text.replace(old, new))
    with pytest.raises(SpecError, match=message):
        sordino_package.train(linear(), federation(), method="odd", out=str(tmp_path / "o"))
    assert not (tmp_path / "o").exists()
