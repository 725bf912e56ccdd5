"""The constants of fixed features were chosen by a script that reads training records and no test record."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sordino.data.dataset import Dataset
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import GaussianEvent

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "feature_constants.py"
PAGE = ROOT / "docs" / "results" / "features.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("feature_constants", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@dataclasses.dataclass(frozen=True)
class Guarded(Dataset):
    """A dataset of which nobody may read a test record."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("x_test", "y_test", "client_test"):
            raise AssertionError(f"{name} was read")
        return super().__getattribute__(name)


def pictures(dataset: str, records: int = 60) -> Guarded:
    """Random pictures whose class is their brightness: something can be learnt of them, quickly."""
    g = torch.Generator().manual_seed(1)
    y = torch.randint(10, (records,), generator=g)
    shape = (records, 3, 32, 32) if dataset == "cifar10" else (records, 28, 28)
    x = torch.rand(shape, generator=g) * 50 + 20 * y.view(-1, *[1] * (len(shape) - 1))
    return Guarded(dataset, x.to(torch.uint8), y, x, y, classes=10)


@pytest.fixture
def small(script, monkeypatch):
    """Few fields, rounds and candidates; every constant still has two."""
    monkeypatch.setattr(script, "ROUNDS", 8)
    for name, case in script.CASES.items():
        monkeypatch.setattr(case.module, "FIELDS", 40)
        axes = {constant: values[:2] for constant, values in list(case.axes.items())[:3]}
        monkeypatch.setitem(script.CASES, name, dataclasses.replace(case, axes=axes, noise=0.0))
    yield script
    for case in script.CASES.values():
        case.module.public_whitening.cache_clear()


NAMES = ("oriented-gradients", "colour-scattering", "silhouettes")


@pytest.mark.parametrize("name", NAMES)
def test_the_choice_reads_no_test_record_and_leaves_the_package_as_it_was(name, small, monkeypatch, capsys):
    from sordino.data import load

    case = small.CASES[name]
    before = {constant: getattr(case.module, constant) for constant in case.axes}
    monkeypatch.setattr(load, "load", pictures)
    x, y = small.from_package(case.dataset)
    chosen = small.choose(case, x, y, 40)
    assert all(chosen[constant] in values for constant, values in case.axes.items())
    assert {constant: getattr(case.module, constant) for constant in case.axes} == before
    printed = capsys.readouterr().out
    assert f"Chosen: {chosen}" in printed and "40 records to train on, 20 held out" in printed


def test_the_guard_itself_refuses():
    with pytest.raises(AssertionError, match="x_test was read"):
        pictures("cifar10").x_test  # noqa: B018


@pytest.mark.parametrize("part", ["trained on", "looked at"])
def test_the_records_that_are_looked_at_are_not_trained_on(part, small, monkeypatch):
    """A held-out label changes which records are right; the model itself does not move."""
    case = small.CASES["silhouettes"]
    data = pictures("fashion-mnist")
    constants = {name: values[0] for name, values in case.axes.items()}
    seen, original = [], small.noisy_models
    monkeypatch.setattr(small, "noisy_models", lambda *given: seen.append(original(*given)) or seen[-1])
    other, where = data.y_train.clone(), slice(0, 40) if part == "trained on" else slice(40, 60)
    other[where] = (other[where] + 1) % 10
    for y in (data.y_train, other):
        small.right(case, constants, data.x_train, y, 40)
    assert torch.equal(seen[0], seen[1]) == (part == "looked at")


def test_the_whole_command_reads_no_test_record_and_hands_the_choice_on(small, monkeypatch):
    from sordino.data import load

    names = ["oriented-gradients", "silhouettes"]
    for name in names:  # main changes them for good
        for constant in small.CASES[name].axes:
            monkeypatch.setattr(small.CASES[name].module, constant, getattr(small.CASES[name].module, constant))
    monkeypatch.setattr(load, "load", pictures)
    chosen = small.main([*names, "--train", "40", "--held-out", "20"])
    assert list(chosen) == names
    for name in names:
        assert {constant: getattr(small.CASES[name].module, constant) for constant in chosen[name]} == chosen[name]


def test_too_few_records_are_refused_in_one_line(small, monkeypatch, capsys):
    from sordino.data import load

    monkeypatch.setattr(load, "load", pictures)
    with pytest.raises(SystemExit):
        small.main(["silhouettes", "--train", "50", "--held-out", "20"])
    assert "50 and 20 records were asked for, there are 60" in capsys.readouterr().err


def test_a_value_moves_only_by_more_than_a_standard_error(script):
    old = torch.zeros(100, dtype=torch.bool)
    new = old.clone()
    old[:50], new[:46], new[50:60] = True, True, True  # 10 won, 4 lost
    assert script.wins(new, old) and not script.wins(old, new)
    new[56:60] = False  # 6 won, 4 lost
    assert not script.wins(new, old)


def test_the_linear_model_learns_what_is_there_and_less_under_noise(script):
    g = torch.Generator().manual_seed(2)
    y = torch.randint(10, (400,), generator=g)
    rows = torch.nn.functional.normalize(torch.eye(10)[y] + 0.2 * torch.randn(400, 10, generator=g)) * 10

    def accuracy(noise: float) -> float:
        scores = (rows @ script.noisy_models(rows, y, noise, 10.0)).view(400, len(script.RATES), 10)
        return float((scores.argmax(2) == y[:, None]).float().mean(0).max())

    assert accuracy(0.0) > 0.9 > 0.5 > accuracy(3000.0)


@pytest.mark.parametrize("epsilon", [8.0, 2.0])
def test_the_noise_is_that_of_the_epsilon(epsilon, script):
    assert script.ONCE[epsilon] == pytest.approx(noise_multiplier(GaussianEvent, epsilon, 1e-5), rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_every_feature_names_the_script_that_chose_its_constants(name, script):
    case = script.CASES[name]
    assert (
        "benchmarks/feature_constants.py" in case.module.__doc__ and "docs/results/features.md" in case.module.__doc__
    )
    assert "test records" not in case.module.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_the_package_has_what_the_page_says_was_chosen(name, script):
    """The page holds what the script printed; a constant that is changed by hand does not match it."""
    case = script.CASES[name]
    section = PAGE.read_text().split(f"## {name}\n")[1].split("\n## ")[0]
    shipped = {constant: getattr(case.module, constant) for constant in case.axes}
    assert f"Chosen: {shipped}:" in section
    for constant, values in case.axes.items():
        assert any(line.startswith(f"| 1 | {constant} | {values[0]}: ") for line in section.splitlines())
