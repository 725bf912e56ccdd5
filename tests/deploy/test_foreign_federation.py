"""A foreign app on a real federation: Flower starts its mod at every site, and the sites' daemons train, or refuse."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.deploy.test_federation import KEYS
from tests.support.ports import free_ports

pytest.importorskip("flwr")
from sordino.deploy import flower, processes, start
from sordino.deploy.create import create
from sordino.deploy.folder import Folder
from sordino.deploy.reviewed import digest_of
from sordino.deploy.site_account import read_ledger
from sordino.spec.toml import to_toml

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "flower_app" / "after"
PLAN = "epsilon=8.0, delta=1e-5, clients=2, clip=1.0, rounds=1, client_rate=1.0, ledger={ledger!r}"
POLICY = {
    "epsilon_per_job": 9.0,
    "delta_per_job": 1e-5,
    "epsilon_total": 9.0,  # room for one run
    "delta_total": 1e-4,
    "methods": ("foreign",),
    "units": ("client",),
    "viewers": ("public",),
}


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sordino-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def written(place: Path) -> Path:
    """Write the example for two clients, with a server that keeps what it heard."""
    app = shutil.copytree(EXAMPLE, place / "app", ignore=shutil.ignore_patterns("__pycache__"))
    text = (app / "server.py").read_text()
    first, last = text.index("epsilon=8.0"), text.index("client_rate=0.5") + len("client_rate=0.5")
    text = text[:first] + PLAN.format(ledger=str(place / "server.sqlite")) + text[last:]
    text = text.replace("num_rounds=20", "num_rounds=1")
    said = f"open({str(place / 'said.json')!r}, 'w').write(json.dumps([sorted(strategy._reasons), weights]))"
    text = text.replace(
        "    print(result.arrays", f"    weights = result.arrays['weights'].numpy().tolist()\n    {said}\n#"
    )
    (app / "server.py").write_text("import json\n" + text)
    return app


def heard(folder: Folder, app: Path) -> tuple[list[str], list[float]]:
    """Run the app with Flower's own command, and return what its server heard."""
    path = app.parent / "said.json"
    path.unlink(missing_ok=True)
    flower.call(folder, "run", str(app), "federation")
    end = time.monotonic() + 120
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, "the app takes too long"
        time.sleep(0.5)
    return tuple(json.loads(path.read_text()))


def command(app: Path) -> Callable[[Path, int, str, Path], list[str]]:
    def made(site: Path, number: int, data: str, path: Path) -> list[str]:
        given = start.site_command(site, number, data, path)
        return [*given, "--app", str(app), "--app-config", f"partition-id={number}"]

    return made


def rounds(folder: Folder, site: str) -> int:
    if not (folder.site(site) / "state" / "ledger.sqlite").exists():
        return 0
    with read_ledger(folder.site(site) / "state") as ledger:
        return len(list(ledger.chain.select("kind = 'round'")))


def test_an_app_with_the_mod_trains_at_the_site_that_lists_it_and_nowhere_else(place: Path) -> None:
    app = written(place)
    (place / "spec.toml").write_text("".join(f"{k} = {to_toml(v)}\n" for k, v in (KEYS | {"clients": 2}).items()))
    folder = create(place / "spec.toml", place / "f", 2, port=free_ports())
    for name, listed in (("site-1", digest_of(app)), ("site-2", "0" * 64)):
        keys = POLICY | {"foreign_apps": (listed,)}
        text = "".join(f"{key} = {to_toml(value)}\n" for key, value in keys.items())
        (folder.site(name) / "policy.toml").write_text(text)
    said: list[str] = []
    try:
        start.up(folder, say=said.append, command=command(app))
        (reason,), weights = heard(folder, app)
        assert digest_of(app) in reason  # the owner of site-2 is told what to review and add
        assert any(weights)
        assert (rounds(folder, "site-1"), rounds(folder, "site-2")) == (1, 0)
    finally:
        start.down(folder, say=said.append)
    assert processes.family(r.mark for r in processes.read(folder.state)) == []
