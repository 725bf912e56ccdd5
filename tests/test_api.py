"""The public names: they are there, they are documented, and the examples that use them run."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import sordino
from sordino.cli.main import COMMANDS
from sordino.core import plugin
from sordino.core.errors import RunError, SpecError
from sordino.methods import Method
from sordino.spec import spec
from support.problems import federation, held_out, linear

ROOT = Path(__file__).parent.parent
PACKAGES = ("accounting", "callbacks", "mechanisms", "methods", "algorithms")
KEYS = {"epsilon": 4.0, "rounds": 2, "seed": 0}


def reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dir_shows_the_public_names_and_all_of_them_are_there():
    assert dir(sordino) == sorted(sordino.__all__)
    for name in sordino.__all__:
        assert getattr(sordino, name) is not None
    for package in PACKAGES:
        module = getattr(sordino, package)
        assert set(getattr(module, "__all__", ())) <= set(dir(module))
        for name in getattr(module, "__all__", ()):
            assert getattr(module, name) is not None


def test_an_unknown_name_is_one_line_that_lists_the_others():
    with pytest.raises(AttributeError, match=r"no attribute 'trian'; it has .*train"):
        sordino.trian  # noqa: B018
    with pytest.raises(AttributeError, match=r"sordino\.methods has no 'DpSdg'"):
        sordino.methods.DpSdg  # noqa: B018


def test_every_plug_in_is_an_attribute_by_its_class():
    assert sordino.methods.DpSgd is plugin.load("methods", "dp-sgd")
    assert sordino.algorithms.Scaffold is plugin.load("algorithms", "scaffold")
    assert sordino.mechanisms.Laplace is plugin.load("privacy.mechanisms", "laplace")
    for package, kind in (("methods", "methods"), ("algorithms", "algorithms"), ("mechanisms", "privacy.mechanisms")):
        assert len(plugin.available(kind)) <= len(dir(getattr(sordino, package)))


def test_the_reference_is_made_of_the_docstrings_and_help_texts():
    made = reference()
    old = [path for path, text in made.pages().items() if (made.DOCS / path).read_text() != text]
    assert old == [], "run python docs/reference.py"
    assert sorted(p.name for p in (made.DOCS / "reference").glob("*.md")) == sorted(
        path.removeprefix("reference/") for path in made.pages() if path.startswith("reference/")
    )


def test_the_reference_names_every_public_name_plug_in_command_and_key():
    made = reference().pages()
    for name in set(sordino.__all__) - {"__version__", *PACKAGES}:
        assert f"(sordino.{name})=\n## {name}\n" in made["reference/sordino.md"]
    for package in PACKAGES:
        for name in getattr(getattr(sordino, package), "__all__", ()):
            assert f"(sordino.{package}.{name})=\n" in made[f"reference/{package}.md"]
    for package, kind in (("methods", "methods"), ("attacks", "attacks"), ("mechanisms", "privacy.mechanisms")):
        for name in plugin.available(kind):
            assert not plugin.ours(kind, name) or f"({package}-{name})=\n" in made[f"reference/{package}.md"]
    for name in COMMANDS:
        assert f"(sordino-{name})=\n## sordino {name}\n" in made["reference/commands.md"]
    for field in spec.fields():
        assert f"| `{field.name}` |" in made["reference/keys.md"]


def test_the_reference_says_what_every_mechanism_can_do():
    page = reference().pages()["reference/mechanisms.md"]
    for name in filter(lambda name: plugin.ours("privacy.mechanisms", name), plugin.available("privacy.mechanisms")):
        section = page.split(f"(mechanisms-{name})=\n")[1].split("\n(mechanisms-")[0]
        members = vars(plugin.load("privacy.mechanisms", name)).items()
        for member in (key for key, value in members if inspect.isfunction(value) and not key.startswith("_")):
            assert f"\n| `{member}(" in section, f"{name}: {member}"
        assert "| `event(" in section


def test_a_docstring_becomes_prose_lists_code_and_a_table_of_arguments():
    made = reference()

    def example(rows, noise=1.0, *, clip=None):
        """Add noise to a*b.

        rows       what is clipped,
                   row by row
        noise, clip  numbers | or nothing

            >>> example(1)

        Returns:
            Noisy rows.
        """

    page = made._entry("sordino", "example", example)
    assert "sordino.example(rows, noise=1.0, *, clip=None)" in page
    assert "Add noise to a\\*b." in page and "```pycon\n>>> example(1)\n```" in page
    assert "**Returns** Noisy rows." in page
    assert "| `rows` |  | what is clipped, row by row |" in page
    assert "| `clip` | `None` | numbers \\| or nothing |" in page


@pytest.mark.parametrize("name", ["sordino.accounting", "sordino.mechanisms", "sordino.methods"])
def test_examples_in_docstrings_are_right(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed


# --- a method or an algorithm as an object


def train(tmp_path, name, **keys):
    return sordino.train(linear(), federation((12,) * 4), out=str(tmp_path), name=name, **KEYS | keys)


def test_a_method_may_be_an_object(tmp_path):
    one = train(tmp_path, "a", method="dp-sgd", clip=0.5, algorithm="fedavgm", server_momentum=0.5)
    two = train(
        tmp_path, "b", method=sordino.methods.DpSgd(clip=0.5), algorithm=sordino.algorithms.FedAvgM(server_momentum=0.5)
    )
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    other = train(tmp_path, "c", method=sordino.methods.DpSgd(clip=0.1), algorithm="fedavgm", server_momentum=0.5)
    assert not torch.equal(next(one.model.parameters()), next(other.model.parameters()))


def test_an_object_that_cannot_be_found_again_is_refused(tmp_path):
    class Mine(Method):
        pass

    with pytest.raises(SpecError, match=r"method must be a name.*SORDINO_PLUGINS"):
        train(tmp_path, "a", method=Mine())
    with pytest.raises(SpecError, match="clip is given twice"):
        train(tmp_path, "a", method=sordino.methods.DpSgd(clip=0.5), clip=0.5)
    assert not list(tmp_path.iterdir())


# --- load, plan, check


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    keys = KEYS | {"method": "dp-sgd", "test": held_out(50)}
    return sordino.train(linear(), federation((12,) * 4), out=str(tmp_path_factory.mktemp("runs")), **keys)


def test_a_run_is_read_back(finished):
    found = sordino.load(finished.folder, linear(seed=5))
    assert found.guarantee == finished.guarantee and found.guarantees == finished.guarantees
    assert found.history == finished.history and found.accuracy == finished.accuracy
    for one, two in zip(found.model.parameters(), finished.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert sordino.load(finished.folder).model is None  # its own model, which the folder does not hold
    assert sordino.load(finished.folder / "public").guarantee == finished.guarantee


def test_a_model_of_ours_is_made_again(tmp_path):
    from sordino.runs import build, run
    from sordino.spec import spec

    wanted = {"dataset": "mnist", "model": "linear", "clients": 3, "rounds": 1, "out": str(tmp_path), "seed": 0}
    done = run.execute(
        build.from_spec(spec.from_dict(wanted | {"method": "none", "features": "none"})), own_model=False
    )
    found = sordino.load(done.folder)
    for one, two in zip(found.model.parameters(), done.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_what_cannot_be_loaded_is_one_line(finished, tmp_path):
    with pytest.raises(RunError, match="no run folder"):
        sordino.load(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"no finished run: result\.json is missing"):
        sordino.load(tmp_path)
    with pytest.raises(RunError, match="holds a different model"):
        sordino.load(finished.folder, nn.Linear(3, 2))


def test_plan_says_what_would_work():
    found = sordino.plan(clients=100, records=600, parameters=1000, epsilon=2.0, delta=1e-5, method="dp-sgd")
    assert found and all("dp-sgd" in option.setting.methods for option in found)
    assert found[0].guarantee.epsilon <= 2.0 and found[0].verdict == "works"
    with pytest.raises(SpecError, match="unknown method"):
        sordino.plan(clients=9, records=9, parameters=9, epsilon=1.0, delta=1e-5, method="dp-sdg")


def test_check_looks_at_keys_files_folders_and_own_models(finished, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('method = "none"\n')
    for found in (sordino.check(method="none"), sordino.check(path)):
        assert found[0].severity == "broken"
    assert [f.rule for f in sordino.check(finished.folder) if f.severity == "broken"] == ["seeds"]
    batch_norm = nn.Sequential(nn.Linear(20, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    found = sordino.check(model=batch_norm, clients=federation((12,) * 4), method="dp-sgd")
    assert any("BatchNorm" in f.found + f.why + f.fix for f in found)
    with pytest.raises(SpecError, match="one of them is missing"):
        sordino.check(model=linear())
    with pytest.raises(SpecError, match="one of them at a time"):
        sordino.check(path, method="none")


# --- the examples


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "examples").glob("*.py")))
def test_an_example_runs(name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(plugin.VARIABLE, raising=False)
    monkeypatch.setenv(plugin.VARIABLE, "")  # own_method sets it
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    shown = capsys.readouterr().out
    expected = {"accounting_only": "epsilon = 1.515", "own_model": "read back: epsilon", "own_data": "works",
                "own_method": "all data of any single client are protected", "ledger": "was refused"}  # fmt: skip
    assert expected[name] in shown
