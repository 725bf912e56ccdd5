"""How a federation is doing: its processes, the nodes that the SuperLink sees, and the progress of its newest job.

The server writes private/federation.json in the run folder after every exchange; whoever reads it may meet a file that
is missing, old or half written, and shows what there is.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.core.parts import PRIVATE, PUBLIC
from sordino.core.rounding import up
from sordino.deploy import flower, processes
from sordino.deploy.folder import Folder
from sordino.deploy.start import known_nodes

FILE = "federation.json"
HEADS = ("site", "daemon", "node", "answered", "silent", "failed", "epsilon", "trouble")


@dataclass(frozen=True)
class JobProgress:
    """What the server last wrote about a job."""

    folder: Path
    rounds: int | None
    done: int | None
    updated: str
    sites: dict[str, dict[str, Any]]

    def sentence(self) -> str:
        """Return the progress as one line."""
        place = f"round {self.done} of {self.rounds}" if self.done is not None else "no round yet"
        answered = sum(_count(site, "answered") for site in self.sites.values())
        silent = sum(_count(site, "silent") for site in self.sites.values())
        refusing = [name for name, site in self.sites.items() if site.get("refused")]
        text = f"{place}; {answered} answers, {silent} missing"
        return text + (f"; refused by {', '.join(refusing)}" if refusing else "")


def read_progress(run: Path) -> JobProgress | None:
    """Return the progress of a run; None if there is none, or it cannot be read at this moment."""
    try:
        content = json.loads((run / PRIVATE / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    entries = content.get("sites")
    sites = [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []
    return JobProgress(
        run,
        _whole(content.get("rounds")),
        _whole(content.get("done")),
        str(content.get("updated", "")),
        {str(site.get("name")): site for site in sites},
    )


def newest(runs: Path) -> JobProgress | None:
    """Return the progress of the run that was written to last; None if there is none."""
    files = []
    for file in runs.glob(f"*/{PRIVATE}/{FILE}"):
        try:
            files.append((file.stat().st_mtime, file))
        except OSError:
            continue
    found = (read_progress(file.parent.parent) for _, file in sorted(files, reverse=True))
    return next((progress for progress in found if progress is not None), None)


def result_lines(run: Path) -> list[str]:
    """Return the lines that end a job: its guarantee, its accuracy and where it lies; empty if it has no result."""
    try:
        result = json.loads((run / PUBLIC / "result.json").read_text(encoding="utf-8"))
        lines = [str(result["guarantee"]["sentence"])]
        by_viewer = dict(result.get("guarantees") or {})
        epsilons = {v: math.inf if g["epsilon"] is None else float(g["epsilon"]) for v, g in by_viewer.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return []
    each = [f"{viewer} {up(epsilon)}" for viewer, epsilon in epsilons.items()]
    if len(each) > 1:
        lines.append(f"Epsilon by viewer: {', '.join(each)}. The server of a direct channel sees who takes part.")
    accuracy = result.get("accuracy")
    if isinstance(accuracy, float):
        lines.append(f"Accuracy with privacy: {100 * accuracy:.2f} %")
    return [*lines, f"Run folder: {run} (to hand out: {run / PUBLIC}; the rest is for the operator alone)"]


@dataclass(frozen=True)
class FederationState:
    """One look at a federation."""

    name: str
    server: dict[str, str]  # part of the server -> "running" or "stopped"
    online: int | None  # None: the SuperLink did not answer
    job: JobProgress | None
    rows: list[tuple[str, ...]]  # one per site, in the order of HEADS

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        job = self.job
        return {
            "federation": self.name,
            "server": self.server,
            "online": self.online,
            "job": None if job is None else {"folder": str(job.folder), "rounds": job.rounds, "done": job.done},
            "sites": [dict(zip(HEADS, row, strict=True)) for row in self.rows],
        }


def look(folder: Folder, ask: bool = True) -> FederationState:
    """Look at everything once; with `ask`, the SuperLink is asked too, which takes about a second."""
    roster = folder.roster()
    records = {r.name: r for r in processes.read(folder.state)}
    runs = {name: _runs(records.get(name)) for name in ("superlink", "superexec", "gate")}
    seen = _seen(folder) if ask and runs["superlink"] == "running" else None
    job, known = newest(folder.runs), known_nodes(folder)
    rows = []
    for site in roster.sites:
        node = "unknown" if seen is None else seen.get(known.get(site.name, ""), "not enrolled")
        entry = {} if job is None else job.sites.get(site.name, {})
        spent = entry.get("epsilon")
        rows.append(
            (
                site.name,
                _runs(records.get(site.name)) if site.name in records else "elsewhere",
                node,
                *(str(entry.get(key, "")) for key in ("answered", "silent", "failed")),
                up(float(spent)) if isinstance(spent, int | float) and not math.isnan(spent) else "",
                str(entry.get("trouble") or ""),
            )
        )
    return FederationState(
        roster.name, runs, None if seen is None else sum(s == "online" for s in seen.values()), job, rows
    )


def _runs(record: processes.ProcessRecord | None) -> str:
    return "running" if record is not None and processes.alive(record) else "stopped"


def _seen(folder: Folder) -> dict[str, str] | None:
    try:
        return flower.nodes(folder)
    except RunError:
        return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count(site: dict[str, Any], key: str) -> int:
    return _whole(site.get(key)) or 0
