"""Who may import whom; and what importing us costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "sordino"

RUN = ("spec", "run_folder", "runs")
# package -> the packages of ours it may import; its own files are a question of `INSIDE`
MAY = {
    "core": (),
    "privacy": ("core",),
    "gradients": ("core", "gradients"),
    "data": ("core", "data"),
    "models": ("core", "models"),
    "algorithms": ("core", "algorithms"),
    "features": ("core", "models", "features"),
    "tasks": ("core", "tasks"),
    "masking": ("core", "masking"),
    "channels": ("core", "privacy", "channels"),
    "contract": ("core", "privacy", "algorithms", "channels", "contract"),
    "methods": ("core", "privacy", "algorithms", "contract", "methods"),
    "audits": ("core", "privacy", "audits"),
    "attacks": ("core", "privacy", "audits", "attacks"),
    "federations": ("core", "privacy", "channels", "contract", "masking", "federations"),
    "ledger": ("core", "privacy", "data", "ledger"),
    "foreign": ("core", "privacy", "ledger", "foreign"),
    "spec": ("core", "privacy", "algorithms", "channels", "contract", "methods", "spec"),
    "run_folder": ("core", "privacy", "spec", "run_folder"),
    "measures": (
        "core",
        "privacy",
        "gradients",
        "data",
        "models",
        "tasks",
        "algorithms",
        "channels",
        "contract",
        "federations",
        "spec",
        "measures",
    ),
    "runs": (
        "core",
        "privacy",
        "gradients",
        "data",
        "features",
        "models",
        "tasks",
        "algorithms",
        "contract",
        "methods",
        "channels",
        "federations",
        "ledger",
        "spec",
        "run_folder",
        "measures",
        "report",  # Result.report
        "runs",
    ),
    "advice": ("core", "privacy", "data", "tasks", "contract", "methods", "ledger", *RUN, "advice"),
    "comparisons": (
        "core",
        "privacy",
        "data",
        "contract",
        "methods",
        "ledger",
        *RUN,
        "advice",
        "comparisons",
        "report",
    ),
    "tuning": ("core", "privacy", "measures", "ledger", *RUN, "report", "tuning"),
    "red_team": (
        "core",
        "privacy",
        "gradients",
        "data",
        "tasks",
        "algorithms",
        "contract",
        "methods",
        "channels",
        "federations",
        "ledger",
        "measures",
        *RUN,
        "audits",
        "attacks",
        "report",
        "red_team",
    ),
    "deploy": (
        "core",
        "privacy",
        "data",
        "contract",
        "channels",
        "methods",
        "federations",
        "masking",
        "foreign",
        "ledger",
        "measures",
        *RUN,
        "report",
        "deploy",
    ),
    "report": ("core", "privacy", "report"),  # it prices the published events once more
    "papers": ("core", "privacy", "contract", "methods", *RUN, "comparisons", "red_team", "report", "papers"),
    "ui": ("core", "privacy", "ledger", "deploy", "report", "ui"),
    "cli": None,  # anything
}
FRONT = ("__init__", "accounting", "callbacks", "flower", "mechanisms")  # modules that are public names
# inside core and privacy, by module: what it may import of its own package
CORE = {
    "errors": (),
    "check": ("errors",),
    "faults": (),
    "heartbeat": (),
    "devices": (),
    "gpu_kernels": (),
    "gpu_random": ("devices", "gpu_kernels"),
    "rng": ("devices", "errors", "gpu_random"),
    "plugin": ("errors",),
    "record": (),
    "parts": (),
    "rounding": (),
    "html": (),
    "svg": (),
    "floats": (),
    "clip_counts": (),
    "holders": ("errors",),
    "state": ("holders",),
    "vector": (),
    "local_training": ("check",),
    "optimizers": ("errors", "local_training", "types"),
    "types": ("vector",),
    "message": ("errors", "rng"),
    "view": ("message", "types"),
    "version": (),
    "variables": ("errors",),
    "saved": ("errors", "types", "variables"),
}
PRIVACY = {
    "pairs": (),
    "loss_distributions": ("pairs",),
    "selection": (),
    "events": ("pairs", "selection"),
    "algebra": ("events",),
    "guarantee": (),
    "clip": (),
    "accountants": ("algebra", "events", "pairs", "loss_distributions", "selection"),
    "quantise": ("clip",),
    "integer_noise": (),
    "geometry": (),
    "rounded_normal": (),
    "lattice": (),
    "release": ("clip", "events"),
    "mechanisms": ("events", "pairs", "clip", "quantise", "integer_noise", "rounded_normal", "lattice", "release"),
    "rotation": (),
    "shared_integers": ("clip", "events", "integer_noise", "mechanisms", "quantise", "release", "rotation"),
    "samplers": ("algebra", "events"),
    "shuffle": ("events", "pairs"),
    "allocation": (),
    "written": ("events", "mechanisms", "shuffle"),
    "tightest": ("algebra", "events", "pairs", "accountants"),
    "calibrate": ("algebra", "events", "accountants", "tightest"),
    "trust": (),
    "crowd": (),
    "derive": ("algebra", "crowd", "events", "release", "samplers", "trust"),
    "price": ("algebra", "events", "accountants", "tightest", "guarantee", "samplers", "trust", "written"),
    "filters": ("algebra", "events", "accountants"),
    "individual": ("accountants",),
    "personal": ("events", "calibrate"),
}


# functions of core/plugin.py that import by name, and how many of their arguments name something of ours
PLUGGED = {"load": 1, "loadable": 1, "import_all": 9}


def imports(path: Path) -> list[tuple[int, str]]:
    """Line and full name of everything of ours that a file imports, wherever in the file it stands."""
    return imports_of(path.read_text())


def imports_of(text: str) -> list[tuple[int, str]]:
    """Imports, and names that are imported by string: "sordino.runs.spec", plugin.load("methods", ...)."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = re.fullmatch(r"sordino\.(\w+)(\.\w+)*", node.value)
            found += [(node.lineno, node.value)] if match and match[1] in MAY else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PLUGGED:
            kinds = [a.value for a in node.args[: PLUGGED[node.func.attr]] if isinstance(a, ast.Constant)]
            found += [(node.lineno, f"sordino.{kind}") for kind in kinds if str(kind).split(".")[0] in MAY]
        if isinstance(node, ast.Import):
            found += [(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                found.append((node.lineno, "sordino.relative"))
            elif node.module:
                found += [(node.lineno, f"{node.module}.{a.name}") for a in node.names]
    return [(line, name) for line, name in found if name.split(".")[0] == "sordino"]


def allowed(here: tuple[str, ...], name: str) -> bool:
    """Whether the module at `here` (its path below sordino) may import `name`."""
    package, target = here[0], name.split(".")[1:]
    if len(here) == 1:
        return package in FRONT  # the front doors, which import lazily or no torch
    if not target or target[0] not in MAY:
        return False  # `import sordino`, a relative import, or a package nobody drew
    if target[0] != package:
        return MAY[package] is None or target[0] in MAY[package]
    inside = {"core": CORE, "privacy": PRIVACY}.get(package)
    if inside is None:
        return True
    own, other = here[1], target[1] if len(target) > 1 else ""
    return own in inside and (other in inside[own] or (other == own and len(here) > 2))


# folders of plug-ins: their helpers (_helper.py, base.py) are below all of them
PLUG_INS = ("methods", "algorithms", "channels", "models", "attacks", "data/sets", "privacy/mechanisms")


def is_helper(name: str) -> bool:
    return name.startswith("_") or name == "base"


def upside_down(root: Path = SRC) -> list[str]:
    """Return helpers of plug-ins that import one of those that share them."""
    out = []
    for folder in PLUG_INS:
        for path in sorted((root / folder).glob("*.py")):
            if not is_helper(path.stem) or path.stem == "__init__":
                continue
            inside = ["sordino", *folder.split("/")]
            for line, name in imports(path):
                parts = name.split(".")
                if parts[: len(inside)] == inside and len(parts) > len(inside) and not is_helper(parts[len(inside)]):
                    out.append(f"{path}:{line} imports {name}")
    return out


def test_a_shared_helper_never_imports_a_leaf(tmp_path):
    assert not upside_down(), "\n" + "\n".join(upside_down())
    (tmp_path / "methods").mkdir()
    bad = tmp_path / "methods" / "_steps.py"
    bad.write_text("from sordino.methods import _measured\nfrom sordino.methods.dp_sgd import DpSgd\n")
    assert upside_down(tmp_path) == [f"{bad}:2 imports sordino.methods.dp_sgd.DpSgd"]


def offences(root: Path = SRC) -> list[str]:
    out = []
    for path in sorted(root.rglob("*.py")):
        here = tuple(part.removesuffix(".py") for part in path.relative_to(root).parts)
        out += [f"{path}:{line} imports {name}" for line, name in imports(path) if not allowed(here, name)]
    return out


def test_imports_go_one_way():
    assert not offences(), "\n" + "\n".join(offences())


@pytest.mark.parametrize(
    ("here", "line", "fine"),
    [
        ("core/rng.py", "from sordino.core.errors import SpecError", True),
        ("core/rng.py", "from sordino.privacy import events", False),
        ("core/errors.py", "from sordino.core import check", False),
        ("privacy/events.py", "from sordino.privacy.tightest import epsilon", False),
        ("privacy/clip.py", "from sordino.privacy.events import Event", False),
        ("privacy/accountants/rdp.py", "from sordino.privacy.calibrate import noise_multiplier", False),
        ("privacy/mechanisms/gaussian.py", "from sordino.privacy.clip import Bounded", True),
        ("privacy/price.py", "from sordino.contract.method import Plan", False),
        ("privacy/release.py", "from sordino.privacy.mechanisms.gaussian import Gaussian", False),
        ("privacy/derive.py", "from sordino.channels.direct import Direct", False),
        ("privacy/derive.py", "from sordino.privacy.price import total", False),
        ("privacy/mechanisms/gaussian.py", "from sordino.privacy.derive import costs", False),
        ("core/message.py", "from sordino.core.types import State", False),
        ("core/variables.py", "from sordino.core.types import State", False),
        ("channels/direct.py", "from sordino.contract.plan import Plan", False),
        ("contract/plan.py", "from sordino.channels.direct import Direct", True),
        ("algorithms/fedavg.py", "from sordino.contract.method import Plan", False),
        ("methods/none.py", "from sordino.federations.simulator import Simulator", False),
        ("methods/none.py", "from sordino.data.clients import adopt", False),
        ("data/load.py", "import sordino.models.cnn", False),
        ("gradients/engine.py", "from sordino.privacy.clip import clip_rows", False),
        ("federations/simulator.py", "from sordino.runs import spec", False),
        ("federations/simulator.py", "from sordino.gradients.engine import Gradients", False),
        ("federations/simulator.py", "from sordino.data.clients import adopt", False),
        ("federations/simulator.py", "from sordino.contract.outlets import Outlets", True),
        ("runs/loop.py", "from sordino.cli.progress import RunProgress", False),
        ("runs/loop.py", "def f():\n    from sordino.cli import run", False),
        ("runs/loop.py", "import sordino", False),
        ("core/plugin.py", 'importlib.import_module("sordino.runs.spec")', False),
        ("contract/plan.py", 'plugin.load("methods", name)', False),
        ("contract/plan.py", 'plugin.load("algorithms", name)', True),
        ("privacy/events.py", 'plugin.import_all("privacy.mechanisms", "privacy.shuffle")', False),
        ("privacy/written.py", 'plugin.import_all("privacy.mechanisms", "privacy.shuffle")', True),
        ("runs/prepare.py", 'plugin.load("models", name)', True),
        ("runs/loop.py", "from . import spec", False),
        ("masking/client.py", "from sordino.core.errors import RunError", True),
        ("masking/client.py", "from sordino.privacy.crowd import Crowd", False),
        ("masking/client.py", "from sordino.channels.secure_sum import SecureSum", False),
        ("cli/run.py", "from sordino.runs import spec", True),
    ],
)
def test_the_checker_sees_a_bad_import_and_names_its_line(here, line, fine, tmp_path):
    path = tmp_path / here
    path.parent.mkdir(parents=True)
    path.write_text(f'"""A module."""\n\nimport math\n{line}\n')
    found = offences(tmp_path)
    assert bool(found) != fine
    if not fine:
        assert f"{path}:{4 + line.count(chr(10))} imports sordino" in found[0]


def test_every_package_is_drawn():
    packages = {p.name for p in SRC.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert packages <= set(MAY), packages - set(MAY)
    for package, drawn in (("core", CORE), ("privacy", PRIVACY)):
        modules = {p.name.removesuffix(".py") for p in (SRC / package).iterdir() if "__" not in p.name}
        assert modules == set(drawn)


def test_no_function_of_a_run_is_long():
    """Fifty lines at most, without the docstring: a run is read from top to bottom."""
    for path in (SRC / "runs").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                length = (node.end_lineno or 0) - first.lineno + 1
                assert length <= 50, f"{path}:{node.lineno} {node.name} has {length} lines"


def test_public_class_names_are_distinct():
    """Two classes of one name are told apart by their module alone, which nobody reads at the place of use."""
    seen: dict[str, Path] = {}
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert node.name not in seen, f"{node.name} is a class of {seen[node.name]} and of {path}"
                seen[node.name] = path


def test_nothing_is_asserted_in_the_source():
    """python -O removes an assert; a privacy check must not vanish with it."""
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Assert), f"{path}:{node.lineno} asserts"


def loaded(code: str, *names: str) -> list[str]:
    """Which of these modules are imported after the code has run in a fresh interpreter."""
    code += f"\nimport sys; print([n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stdout)


def test_importing_us_imports_nothing_heavy():
    assert loaded("import sordino", "torch", "flwr", "matplotlib", "pandas", "numpy") == []
    assert loaded("import sordino.cli.main", "torch", "flwr", "matplotlib", "pandas") == []


@pytest.mark.parametrize("what", ["accounting", "Ledger", "Guarantee", "SordinoError"])
def test_budgets_and_accounting_need_no_torch(what):
    assert loaded(f"import sordino; sordino.{what}", "torch", "pandas", "matplotlib") == []


@pytest.mark.slow
def test_training_imports_nothing_it_does_not_need():
    assert loaded("import sordino; sordino.train", "torch", "flwr", "matplotlib", "pandas") == ["torch"]


def test_help_is_instant():
    command, times = [str(Path(sys.executable).with_name("sordino")), "--help"], []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        times.append(time.perf_counter() - start)
        assert done.returncode == 0 and "run" in done.stdout
    assert min(times) < 0.5
