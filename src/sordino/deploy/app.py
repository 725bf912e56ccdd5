"""The Flower app of a federation: the shim, the run file and the roster, in the form that `flwr run` uploads."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from sordino.core.errors import SpecError
from sordino.data import schema as schemas
from sordino.deploy.folder import ROSTER, Folder, Roster
from sordino.runs import early
from sordino.spec import spec as specs
from sordino.spec.toml import to_toml
from sordino.spec.values import frozen

SHIM = ("__init__.py", "client.py", "server.py")
SCHEMA = "schema.toml"
PYPROJECT = """\
# The Flower app of the federation {name}: a shim that imports sordino, which every party has installed.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "sordino-app"
version = "1.0.0"
description = "A Sordino job"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.43"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "sordino"

[tool.flwr.app.components]
serverapp = "sordino_app.server:app"
clientapp = "sordino_app.client:app"

[tool.flwr.app.config]
out = ""  # folder for the run folder (default: server/runs of the federation, as `sordino deploy run` sets it)
timeout = 600.0  # seconds to wait for the answers of one exchange
wait = 120.0  # seconds to wait for the sites before the first round
sites = 0  # how many sites must be there by then (0: all of the roster)
resume = ""  # a run folder to continue
name = ""  # name of the run folder (default: derived from the time)
shuffler = ""  # HOST:PORT of the shuffler, for channel = shuffler
shuffler_ca = ""  # PEM file by which its certificate is checked; without it the connection is not encrypted
"""


def read_spec(path: Path, sites: int | None) -> tuple[dict[str, Any], specs.Spec]:
    """Return the keys of a run file for one client per site, and the spec that they give.

    Args:
        path: the run file.
        sites: the number of sites; None takes it from the run file.
    """
    keys = specs.read(path)
    clients = keys.get("clients", sites)
    if clients is None:
        raise SpecError(f"how many sites? {path} has no key clients: give --sites N, one client each.")
    if sites is not None and clients != sites:
        raise SpecError(
            f"{path} says clients = {clients}, but --sites is {sites}, and every site holds one client: drop the key "
            f"clients, or use --sites {clients}."
        )
    keys |= {"clients": clients}
    if isinstance(keys.get("schema"), str):
        keys["schema"] = str(_schema(path, keys["schema"], Path(str(keys.get("dataset", ""))).parent))
    spec = specs.from_dict(keys)
    early.check_method(spec)
    return keys, spec


def _schema(path: Path, named: str, data: Path) -> Path:
    """Return where the schema of a run file lies: in the current folder, beside the data, or beside the run file."""
    for folder in (Path(), data, path.parent):
        if (folder / named).is_file():
            schemas.read(folder / named)
            return folder / named
    raise SpecError(f"{path} names the schema {named}, which is neither here, nor beside the data, nor beside it.")


def write(folder: Folder, roster: Roster, keys: dict[str, Any]) -> None:
    """Write the app into the folder of a federation."""
    package = folder.app / "sordino_app"
    package.mkdir(parents=True)
    template = resources.files("sordino.deploy.template")
    for name in SHIM:
        (package / name).write_text((template / name).read_text(encoding="utf-8"), encoding="utf-8")
    if "schema" in keys:
        shutil.copyfile(keys["schema"], package / SCHEMA)
        keys = keys | {"schema": SCHEMA}
    lines = ["# The run file of this federation, as given to `sordino deploy init`; one client per site."]
    lines += [f"{key} = {to_toml(frozen(value))}" for key, value in keys.items()]
    (package / "spec.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (package / ROSTER).write_text(roster.to_toml(), encoding="utf-8")
    (folder.app / "pyproject.toml").write_text(PYPROJECT.format(name=roster.name), encoding="utf-8")
