"""`sordino tune`: search for good settings by random trials, at one honest total that is shown before."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sordino.cli.run import all_flags, with_flags
from sordino.core.errors import SpecError
from sordino.core.parts import PUBLIC
from sordino.core.record import plain
from sordino.privacy import selection
from sordino.report import figures, files
from sordino.run_folder import boundary
from sordino.run_folder.folder import RunFolder
from sordino.spec import spec
from sordino.spec.values import parse
from sordino.tuning import space
from sordino.tuning import tune as tuning
from sordino.tuning.total import PricedSearch, Search, priced
from sordino.tuning.trials import Scored

LAWS = {
    "poisson": (selection.POISSON, 0.0),
    "geometric": (selection.BINOMIAL, 1.0),
    "logarithmic": (selection.BINOMIAL, 0.0),
}
OPTIONS = {"trials": 20, "law": "geometric", "disjoint": None}  # of the search, in [tune] or as flags, with defaults
FLAGS = {k: v for k, v in all_flags().items() if k not in ("baseline", "audit", "record_views", "tuning")}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--trials", default=None, metavar="N", help="Expected number of trials (default 20); exact with --disjoint."
)
@click.option(
    "--law",
    default=None,
    metavar="LAW",
    help="Law of the secret number of trials: geometric (default), logarithmic (cheaper, often few trials), poisson, "
    "or tnb:ETA.",
)
@click.option(
    "--disjoint",
    default=None,
    metavar="SHARE",
    help="Make the trials on this share of the records, which the final run never touches, instead of random stopping.",
)
@click.option(
    "--search",
    multiple=True,
    metavar="KEY=VALUES",
    help="What is searched (repeatable): clip=0.25,0.5,1 or learning_rate=0.1:64:log. Default: [tune] of the file, "
    "else learning rate and clip.",
)
@click.option("--parallel", default="1", metavar="N", show_default=True, help="Trials that run at the same time.")
@click.option("--dry-run", is_flag=True, help="Show the price and stop: nothing is charged, nothing is trained.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_flags(FLAGS)
def tune(
    file: Path | None,
    trials: str | None,
    law: str | None,
    disjoint: str | None,
    search: tuple[str, ...],
    parallel: str,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Search for good settings of the run in FILE by random trials; epsilon is the total of the whole search.

    After an interruption, the same command with the same --name goes on and charges nothing twice.
    """
    screen = Screen(as_json)
    table = {} if file is None else spec.read_tune(file)
    asked = _search(file, table, {"trials": trials, "law": law, "disjoint": disjoint}, search, flags)
    processes = _processes(parallel, asked)
    with screen.owner.status("Preparing data, model and price ..."):
        plan = priced(asked)
        whose = tuning.afford(plan)
    for sentence in plan.sentences():
        screen.say(sentence)
    if dry_run:
        if as_json:
            total = {"epsilon": plan.epsilon, "delta": asked.spec.delta}
            _print({"tune": {"total": total, "trial_epsilon": plan.trial_epsilon}})
        return
    folder = tuning.open_folder(plan)
    name = folder.path.name
    screen.say(f"Folder: {folder.path} (after an interruption: the same command with --name {name})")
    try:
        with screen.trials():
            about = tuning.execute(folder, plan, whose, processes, screen.after_trial)
        _show(folder, plan, about, screen, as_json)
    except KeyboardInterrupt:
        click.echo(f"\nsordino: stopped. To continue, use the same command with --name {name}.", err=True)
        sys.exit(130)
    finally:
        folder.close()


def _search(
    file: Path | None,
    table: dict[str, Any],
    given: dict[str, str | None],
    texts: tuple[str, ...],
    flags: dict[str, Any],
) -> Search:
    """Return the search that the file and the flags ask for; flags come first."""
    values: dict[str, Any] = {} if file is None else spec.read(file)
    values |= {k: v if isinstance(v, bool) else parse(k, v, FLAGS[k][0]) for k, v in flags.items() if v is not None}
    options = OPTIONS | {k: table[k] for k in OPTIONS if k in table}
    options |= {k: v for k, v in given.items() if v is not None}
    trials = _number("trials", options["trials"], int)
    disjoint = None if options["disjoint"] is None else float(_number("disjoint", options["disjoint"], float))
    if trials < 2:
        raise SpecError(f"trials must be at least 2, not {trials}: a search of one trial is a run.")
    wanted = tuning.settled(spec.from_dict(values), disjoint)
    declared = space.from_table({k: v for k, v in table.items() if k not in OPTIONS}) | space.from_flags(texts)
    law, eta = _law(options["law"])
    return Search(wanted, space.checked(declared, wanted), int(trials), law, eta, disjoint)


def _number(name: str, value: Any, kind: Any) -> float:
    if isinstance(value, str):
        return float(parse(name, value, kind)) if kind is float else int(parse(name, value, kind))
    if isinstance(value, bool) or not isinstance(value, int | float) or (kind is int and not isinstance(value, int)):
        raise SpecError(f"tune.{name} must be {'a whole number' if kind is int else 'a number'}, not {value!r}.")
    return value


def _law(text: Any) -> tuple[str, float]:
    if text in LAWS:
        return LAWS[text]
    name, colon, eta = str(text).partition(":")
    if name == "tnb" and colon:
        return selection.BINOMIAL, float(parse("law", eta, float))
    raise SpecError(f"law must be one of {', '.join(LAWS)} or tnb:ETA, not {text!r}.")


def _processes(text: str, asked: Search) -> int:
    processes: int = parse("parallel", text, int)
    if processes < 1:
        raise SpecError(f"parallel must be at least 1, not {processes}.")
    if processes > 1 and asked.spec.in_workers:
        raise SpecError(
            f"parallel = {processes} does not go with federation = {asked.spec.federation}: use one of the two."
        )
    return processes


def _show(folder: RunFolder, plan: PricedSearch, about: dict[str, Any], screen: Screen, as_json: bool) -> None:
    result, report = folder.read_json("result.json", PUBLIC), files.automatic(folder.path)
    if as_json:
        _print({"folder": str(folder.path), **result, "tune": about})
        return
    settings = ", ".join(f"{key} = {value}" for key, value in about["settings"].items())
    screen.say(f"\nWinner: {settings}")
    if (accuracy := result["accuracy"]) is not None:
        screen.say(f"Its accuracy: {100 * accuracy:.2f} % ({_scored(plan)})")
    for name, value in result["metrics"].items():
        if accuracy is None and value is not None:
            screen.say(f"Its {name}: {value:.4g} ({_scored(plan)})")
    screen.say(result["guarantee"]["sentence"])
    screen.say(f"Model and result: {folder.public}. For you alone: {folder.private}")
    if not figures.ready():
        screen.say('No picture: matplotlib is not installed; try: pip install "sordino[plot]", then the same command.')
    screen.say(report)


def _scored(plan: PricedSearch) -> str:
    if plan.job.held_out is None:
        return "on the public test records; the best of several trials looks a little better than it is"
    return "noisy, on held-out records; the best of several trials looks a little better than it is"


def _print(output: dict[str, Any]) -> None:
    shown = plain(output)
    boundary.check_output(shown)
    click.echo(jsonlib.dumps(shown, indent=2, allow_nan=False))


class Screen:
    """Terminal output: the price and the winner for everyone, the trials for the owner's own terminal."""

    def __init__(self, quiet: bool) -> None:
        self.console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        self.owner = Console(quiet=quiet, stderr=True, highlight=False, soft_wrap=True)
        state = TextColumn("{task.fields[state]}")
        columns = (TextColumn("trial"), MofNCompleteColumn(), BarColumn(bar_width=24), state, TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.owner, disable=quiet or not self.owner.is_terminal, transient=True)
        self.task = self.bar.add_task("trial", total=None, state="")

    def say(self, text: str) -> None:
        """Print a line to standard output."""
        self.console.print(text, markup=False)

    def trials(self) -> Progress:
        """Return the progress bar, which shows how many trials there are: on the owner's terminal, or not at all."""
        return self.bar

    def after_trial(self, scored: Scored, number: int) -> None:
        """Show the score of a trial in the bar."""
        self.bar.update(self.task, total=number, advance=1, state=f"score {scored.score:.4g}")
