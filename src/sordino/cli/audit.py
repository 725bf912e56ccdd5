"""`sordino audit`: lower bounds on the epsilon of a run, or of a spec before its run."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from sordino.audits import game
from sordino.audits.bounds import Lower
from sordino.cli.steps import steps
from sordino.core import check
from sordino.core.errors import RunError, SpecError
from sordino.core.parts import PRIVATE
from sordino.core.record import plain
from sordino.core.rounding import down, up
from sordino.red_team.audit import CANARIES, Audit, PlayedGame, check_viewer
from sordino.red_team.audit import audit as audited
from sordino.red_team.probe import APART, COORDINATES
from sordino.report import files
from sordino.run_folder.folder import RunFolder
from sordino.run_folder.seal import reseal
from sordino.runs.build import from_spec
from sordino.runs.job import Job
from sordino.runs.run import resume_spec
from sordino.spec import spec

REFUTED = 3  # exit code
FILE = "audit.json"
SOURCES = {
    False: "Played on made-up records of the same shapes; no private record was used.",
    True: "Played on made-up records of the same shapes; and canaries were planted in the run itself.",
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target", metavar="RUN|FILE", type=click.Path(path_type=Path))
@click.option("--canaries", default=CANARIES, show_default=True, help="Trials with a canary; as many without one.")
@click.option(
    "--view", default=None, metavar="VIEWER", help="server, public or server+N (default: that of the budget)."
)
@click.option("--confidence", default=game.SHOWN, show_default=True, help="Of the bounds that are shown.")
@click.option("--seed", default=0, show_default=True, help="Of the noise of the audit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit(target: Path, canaries: int, view: str | None, confidence: float, seed: int, as_json: bool) -> None:
    """Measure how much of the accounted epsilon an auditor can really show.

    RUN is a run folder; FILE is a run file (TOML), before anything is spent. The method, noise, draws and channel are
    played on made-up records with and without a canary, and the model and loss on made-up records of the real batch
    size. No private record is looked at and nothing is charged. What was found about a run is also written to the
    public part of its folder. The exit code is 3 if the guarantee is refuted with 99.99 % confidence; an audit never
    proves a guarantee."""
    if canaries < 100:
        raise SpecError(f"canaries must be at least 100, not {canaries}: fewer show nothing.")
    check.below_one(confidence=confidence)
    check_viewer(view)
    job, folder = _opened(target)
    try:
        with steps(quiet=as_json) as step:
            found = audited(job, canaries, confidence, view, seed, step)
    finally:
        job.federation.close()
    if folder is not None:
        found = replace(found, planted=_known(folder, found))
        publish(folder, job, found)
        if (folder.public / files.NAME).is_file():
            files.automatic(folder.path)  # which shows the audit
    if as_json:
        click.echo(jsonlib.dumps(plain({"target": str(target)} | found.to_json()), indent=2, allow_nan=False))
    else:
        for line in lines(found):
            click.echo(line)
        show(found)
    sys.exit(REFUTED if found.alarm else 0)


def _opened(target: Path) -> tuple[Job, RunFolder | None]:
    """Return the job of a run folder, or of a run file, and the folder."""
    if target.is_dir():
        return resume_spec(target), RunFolder(target)
    if not target.is_file():
        raise RunError(f"there is no run folder and no run file {target}.")
    return from_spec(spec.from_dict(spec.read(target))), None


def _known(folder: RunFolder, found: Audit) -> Lower | None:
    """Return the bound from canaries that were planted in the run, if an earlier audit of the same view has it."""
    for part in (folder.public, folder.private):
        if (part / FILE).is_file():
            earlier = jsonlib.loads((part / FILE).read_text())
            if earlier.get("planted") and (earlier["viewer"], earlier["delta"]) == (found.viewer, found.delta):
                return Lower(**earlier["planted"])
    return None


def publish(folder: RunFolder, job: Job, found: Audit) -> None:
    """Write an audit to the public part of a run, or to the private part if its view is not the guarantee's.

    Made-up records tell nothing of anyone; planted canaries were scored from a view of the run, which may be shown to
    those alone against whom the guarantee holds. The seal of the run covers it."""
    data = plain(found.to_json())
    if found.planted is None or (found.viewer == job.viewer and math.isfinite(found.accounted)):
        folder.publish_json(FILE, data)
        reseal(folder, FILE)
    else:
        folder.write_json(FILE, data)
        reseal(folder, FILE, PRIVATE)


def lines(found: Audit) -> list[str]:
    """Return the audit in words."""
    unit = f"one {found.unit} ({found.relation})"
    out = [
        f"{found.method}, {found.rounds} rounds, channel {found.channel}: {unit} against the {found.viewer}, "
        f"delta = {found.delta:g}. {SOURCES[found.planted is not None]}",
        found.sentence(),
    ]
    out += [f"Note: {note}." for note in found.notes]
    out += [m.sentence() for m in found.moves if m.fails]
    if found.moves and not any(m.fails for m in found.moves):
        farthest = max(m.moved / m.allowed for m in found.moves if m.allowed)
        out.append(
            f"Own model and loss, at the real batch size: no unit moved what noise is added to further than declared "
            f"(at most {farthest:.2f} of what is allowed)."
        )
    return out


def show(found: Audit) -> None:
    """Print the table of bounds."""
    table = Table(title=f"Lower bounds on epsilon, {100 * found.confidence:g} % confidence", title_justify="left")
    for column in ("bound", "takes for granted", "trials", "epsilon at least", "could show at most"):
        table.add_column(column)
    if found.claimed is not None:
        table.add_row("claimed by the paper", "", "", f"{found.claimed:g}", "")
    table.add_row("accounted (upper bound)", "the proof", "", up(found.accounted), "")
    for trial in found.trials:
        for name, assumed, bound in rows(trial):
            count = f"{trial.trials:,} + {trial.trials:,}" if name != "one run" else ""
            table.add_row(name, assumed, count, down(bound.epsilon), f"{bound.ceiling:.2f}")
    if found.planted is not None:
        planted = found.planted
        table.add_row("canaries in the run itself", "nothing", "", down(planted.epsilon), f"{planted.ceiling:.2f}")
    Console(highlight=False).print(table)


def rows(trial: PlayedGame) -> list[tuple[str, str, Lower]]:
    """Return the bounds of a game: name, what they take for granted, value."""
    name = {APART: "many clients", COORDINATES: "many coordinates"}.get(trial.placement, "many runs")
    out = [(name, trial.assumes or "nothing", trial.shown)]
    also = f", {trial.assumes}" if trial.assumes else ""
    out.append((f"{name}, Gaussian", f"a Gaussian trade-off{also}", trial.gaussian))
    return out if trial.one_run is None else [*out, ("one run", "nothing", trial.one_run)]
