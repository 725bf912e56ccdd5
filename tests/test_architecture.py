"""Who may import whom; and what importing us costs."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "sordino"

# package -> the packages of ours it may import; its own files are a question of `INSIDE`
MAY = {
    "core": (),
    "privacy": ("core",),
    "gradients": ("core", "gradients"),
    "data": ("core", "data"),
    "models": ("core", "models"),
    "algorithms": ("core", "algorithms"),
    "channels": ("core", "privacy", "channels"),
    "methods": ("core", "privacy", "algorithms", "channels", "methods"),
    "attacks": ("core", "privacy", "attacks"),
    "federations": ("core", "privacy", "methods", "federations"),
    "runs": (
        "core",
        "privacy",
        "gradients",
        "data",
        "models",
        "algorithms",
        "methods",
        "channels",
        "federations",
        "runs",
    ),
    "report": ("core", "report"),
    "experiments": ("core", "privacy", "methods", "runs", "report", "experiments"),
    "cli": None,  # anything
}
# inside core and privacy, by module: what it may import of its own package
CORE = {
    "errors": (),
    "check": ("errors",),
    "rng": ("errors",),
    "plugin": ("errors",),
    "record": (),
    "parts": (),
    "rounding": (),
    "floats": (),
    "holders": ("errors",),
    "state": ("holders",),
    "vector": (),
    "types": ("vector",),
    "message": ("errors", "rng"),
    "view": ("message", "types"),
    "variables": ("errors",),
}
PRIVACY = {
    "pairs": (),
    "losses": ("pairs",),
    "events": ("pairs",),
    "algebra": ("events",),
    "guarantee": (),
    "clip": (),
    "accountants": ("algebra", "events", "pairs", "losses"),
    "quantise": ("clip",),
    "exact": (),
    "rounded_normal": (),
    "lattice": (),
    "release": ("clip", "events"),
    "mechanisms": ("events", "pairs", "clip", "quantise", "exact", "rounded_normal", "lattice", "release"),
    "samplers": ("algebra", "events"),
    "shuffle": ("events", "pairs"),
    "claims": ("pairs", "accountants"),
    "allocation": ("accountants",),
    "account": ("algebra", "events", "pairs", "accountants"),
    "calibrate": ("algebra", "events", "accountants", "account"),
    "trust": (),
    "crowd": (),
    "derive": ("algebra", "crowd", "events", "release", "samplers", "trust"),
    "price": ("algebra", "events", "accountants", "account", "guarantee", "samplers", "trust"),
    "filters": ("algebra", "events", "accountants"),
    "individual": ("accountants",),
    "personal": ("events", "calibrate"),
}


def imports(path: Path) -> list[tuple[int, str]]:
    """Line and full name of everything of ours that a file imports, wherever in the file it stands."""
    return imports_of(path.read_text())


def imports_of(text: str) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(text)):
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
    if package == "__init__":
        return True  # the front door, which imports lazily
    if not target or target[0] not in MAY:
        return False  # `import sordino`, a relative import, or a package nobody drew
    if target[0] != package:
        return MAY[package] is None or target[0] in MAY[package]
    inside = {"core": CORE, "privacy": PRIVACY}.get(package)
    if inside is None:
        return True
    own, other = here[1], target[1] if len(target) > 1 else ""
    return own in inside and (other in inside[own] or (other == own and len(here) > 2))


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
        ("privacy/events.py", "from sordino.privacy.account import epsilon", False),
        ("privacy/clip.py", "from sordino.privacy.events import Event", False),
        ("privacy/accountants/rdp.py", "from sordino.privacy.calibrate import noise_multiplier", False),
        ("privacy/mechanisms/gaussian.py", "from sordino.privacy.clip import Bounded", True),
        ("privacy/price.py", "from sordino.methods.base import Plan", False),
        ("privacy/release.py", "from sordino.privacy.mechanisms.gaussian import Gaussian", False),
        ("privacy/derive.py", "from sordino.channels.direct import Direct", False),
        ("privacy/derive.py", "from sordino.privacy.price import total", False),
        ("privacy/mechanisms/gaussian.py", "from sordino.privacy.derive import costs", False),
        ("core/message.py", "from sordino.core.types import State", False),
        ("core/variables.py", "from sordino.core.types import State", False),
        ("channels/direct.py", "from sordino.methods.plan import Plan", False),
        ("methods/plan.py", "from sordino.channels.direct import Direct", True),
        ("algorithms/fedavg.py", "from sordino.methods.base import Plan", False),
        ("methods/none.py", "from sordino.federations.simulator import Simulator", False),
        ("methods/none.py", "from sordino.data.clients import adopt", False),
        ("data/load.py", "import sordino.models.cnn", False),
        ("gradients/engine.py", "from sordino.privacy.clip import clip_rows", False),
        ("federations/simulator.py", "from sordino.runs import spec", False),
        ("federations/simulator.py", "from sordino.gradients.engine import Gradients", False),
        ("federations/simulator.py", "from sordino.data.clients import adopt", False),
        ("federations/simulator.py", "from sordino.methods.outlets import Outlets", True),
        ("runs/loop.py", "from sordino.cli.progress import RunProgress", False),
        ("runs/loop.py", "def f():\n    from sordino.cli import run", False),
        ("runs/loop.py", "import sordino", False),
        ("runs/loop.py", "from . import spec", False),
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
