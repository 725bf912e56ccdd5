"""The server of a federation: what the Flower app runs as its ServerApp."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from sordino.core.errors import RunError, SordinoError
from sordino.core.record import RoundRecord
from sordino.deploy import gathering, shuffling
from sordino.deploy.agreement import Agreement, checked, public_keys
from sordino.deploy.flower_post import FlowerPost
from sordino.deploy.folder import Roster, read_roster
from sordino.deploy.gathering import Asked
from sordino.deploy.site_price import charge, own
from sordino.federations.flower import Flower, Post
from sordino.report import files
from sordino.runs import run
from sordino.runs.job import Job
from sordino.spec import spec as specs

AGREEMENT, STATUS = "agreement.json", "federation.json"  # in the private part of a run folder
FAILED = "failed.json"  # in the folder of runs: why the last job did not begin or stopped
SCHEMA = "schema.toml"
COUNTED = ("answered", "silent", "failed", "participations", "last")  # of a site, over all parts of a run


def main(grid: Grid, context: Context, app: Path) -> None:
    """Run the job of a Flower app: spec.toml, federation.toml and perhaps schema.toml in its folder."""
    config = dict(context.run_config)
    out = Path(str(config.get("out") or Path.cwd() / "runs"))
    out.mkdir(parents=True, exist_ok=True)
    (out / FAILED).unlink(missing_ok=True)
    try:
        roster = read_roster(app / "federation.toml")
        post = FlowerPost(grid, roster, float(config.get("timeout") or 600.0))
        serve(post, roster, app, out, config)
    except SordinoError as error:
        (out / FAILED).write_text(json.dumps({"error": str(error)}), encoding="utf-8")
        print(f"sordino: {error}", file=sys.stderr, flush=True)
        raise  # an exit of the process would be noticed by Flower only when its heartbeat lapses


def serve(post: Post, roster: Roster, app: Path, out: Path, config: Mapping[str, Any]) -> run.Result:
    """Run a job on the sites that the post reaches; `config` holds out, name, resume, wait, sites, shuffler."""
    at = Path(str(config["resume"])) if config.get("resume") else None
    if at is not None and not at.is_absolute():
        at = out / at
    asked = _asked(app)
    agreement = _gathered(post, roster, asked, config) if at is None else _stored(at)
    gathering.open_everywhere(post, agreement, _wait(config))
    keys: dict[str, Any] = {"out": str(out), "ledger": str(out.parent / "ledger.sqlite")}
    if config.get("name") and at is None:
        keys["name"] = str(config["name"])
    board = StatusBoard(agreement)
    mix = shuffling.mix_at(str(config.get("shuffler") or ""), str(config.get("shuffler_ca") or ""))
    job = gathering.federated(post, roster, agreement, asked.test, mix=mix, changed=board.changed, **keys)
    board.job = job
    if at is not None:
        board.continued(at)
    result = run.execute(
        job,
        own_model=False,
        at=at,
        began=lambda path: board.begin(path, agreement),
        watch=board.noted,
        owner=_say,
    )
    _say(files.automatic(result.folder))
    return result


def _asked(app: Path) -> Asked:
    """Return what the app's run file asks for, with the public test records that this machine has."""
    keys, schema = public_keys(app / "spec.toml"), app / SCHEMA
    places = specs.read(app / "spec.toml")
    text = schema.read_text(encoding="utf-8") if schema.is_file() else None
    test = gathering.public_test(
        checked(keys), places.get("data_dir"), schema if text is not None else None, places.get("test")
    )
    return Asked(keys, text, test)


def _gathered(post: Post, roster: Roster, asked: Asked, config: Mapping[str, Any]) -> Agreement:
    least = int(config.get("sites") or len(roster.sites))
    facts = gathering.hello(post, roster, asked, _wait(config), least, _say)
    return gathering.agreed(roster, asked, facts)


def _wait(config: Mapping[str, Any]) -> float:
    """Return for how many seconds sites that do not answer are asked again, before the first round."""
    return float(config.get("wait") or 120.0)


def _stored(path: Path) -> Agreement:
    """Return the agreement of an interrupted run."""
    file = path / "private" / AGREEMENT
    try:
        return Agreement.from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} holds no agreement with sites: it is no run of a federation, or damaged.") from error


class StatusBoard:
    """Writes how a run on sites is going to its folder, for `sordino deploy status`; only the owner sees it."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement, self.job, self._path = agreement, None, None  # type: tuple[Agreement, Job | None, Path | None]
        self._done = 0
        self._epsilons: dict[tuple[float | None, int], float] = {}  # by noise multiplier and participations

    def begin(self, path: Path, agreement: Agreement) -> None:
        """Write the agreement to the folder of the run, before the first round."""
        private = path / "private"
        (private / AGREEMENT).write_text(json.dumps(agreement.to_json()), encoding="utf-8")
        self._path = private / STATUS
        _say(f"run {path.name} began, with {len(agreement.members)} sites")
        self.changed()

    def continued(self, path: Path) -> None:
        """Go on with the counts of sites that an interrupted run had written; a damaged file is left out."""
        try:
            sites = json.loads((path / "private" / STATUS).read_text(encoding="utf-8"))["sites"]
            before = {site["name"]: {name: site[name] for name in COUNTED} for site in sites}
        except (OSError, ValueError, KeyError, TypeError):
            return
        if self.job is not None and isinstance(self.job.federation, Flower):
            for name, status in self.job.federation.status.items():
                vars(status).update(before.get(name, {}))

    def noted(self, record: RoundRecord) -> None:
        """Note that a round has ended."""
        self._done = record.round
        lost = f", lost: {record.lost}" if record.lost else ""
        _say(f"round {record.round}{lost}")
        self.changed()

    def changed(self) -> None:
        """Write the status, whole or not at all."""
        job, path = self.job, self._path
        if job is None or path is None or not isinstance(job.federation, Flower):
            return
        sites = [
            {"name": name, **vars(status), "epsilon": self._epsilon(job, name, status.participations)}
            for name, status in job.federation.status.items()
        ]
        content = {
            "job": self._agreement.id,
            "rounds": job.plan.rounds,
            "done": self._done,
            "updated": time.time(),
            "sites": sites,
        }
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content), encoding="utf-8")
        os.replace(new, path)  # noqa: PTH105

    def _epsilon(self, job: Job, site: str, participations: int) -> float:
        """Return what so many participations cost a site by its own count, which has no amplification."""
        mine = own(job, self._agreement.member(site).clients)
        many = min(participations, job.plan.participations)
        z = mine.plan.noise_multiplier
        if (z, many) not in self._epsilons:
            self._epsilons[z, many] = charge(mine, many).epsilon if many else 0.0
        return self._epsilons[z, many]


def _say(text: str) -> None:
    print(f"sordino: {text}", flush=True)
