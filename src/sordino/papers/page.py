"""The section of a results page for one experiment: what was run, the table and the picture."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sordino.core.errors import RunError
from sordino.core.rounding import up
from sordino.papers import settings
from sordino.papers.base import FORMS, Experiment, Outcome, honest, spread
from sordino.report.summary import Spread
from sordino.report.tables import to_csv

HEADS = {form: f"ours, {words}" for form, words in settings.WORDS.items()}


@dataclass(frozen=True)
class Provenance:
    """How the runs of a page were made."""

    command: str
    scale: float = 1.0
    changed: Sequence[str] = ()  # keys set by hand, as KEY=VALUE
    failures: Mapping[str, str] = field(default_factory=dict)  # reasons by trial
    wanted: int = 0  # number of runs of the complete experiment

    def complete(self, outcomes: Sequence[Outcome]) -> bool:
        """Return whether these are all runs of the experiment as it stands in the documentation."""
        return self.scale == 1 and not self.changed and len(outcomes) >= self.wanted


def section(
    experiment: Experiment, outcomes: Sequence[Outcome], how: Provenance, picture: str | None, drawn: str | None = None
) -> str:
    """Return the Markdown section of one figure or table.

    Args:
        experiment: the figure or table.
        outcomes: the results of its finished runs.
        how: how the runs were made.
        picture: link to the picture, if there is one.
        drawn: link to the file of the plotted numbers, if the picture shows more than scores.
    """
    lines = [f"## {experiment.title}", ""]
    if experiment.verdict and how.complete(outcomes):
        word, _, reason = experiment.verdict.partition(":")
        lines += [f"**{word}:**{reason}" if reason else f"**{word}**", ""]
    lines += [experiment.about, "", f"    {how.command}", ""]
    if how.scale != 1:
        lines += [f"Run at scale {how.scale:g}: fewer rounds, clients and seeds than the paper's setting.", ""]
    if how.changed:
        compared = ", so nothing here compares with the paper's numbers" if experiment.paper else ""
        lines += [f"Changed by hand: {', '.join(how.changed)}{compared}.", ""]
    if len(outcomes) < how.wanted:
        lines += [f"So far {len(outcomes)} of {how.wanted} runs.", ""]
    if experiment.within:
        lines += [f"These are runs of {experiment.within}, where their scores stand.", ""]
    else:
        lines += [*table(experiment, outcomes), ""]
    if lost := list(dict.fromkeys(f"{o.trial.row} at {o.trial.x}" for o in outcomes if o.diverged)):
        lines += [f"Diverged, so that the loss is no finite number at the end: {', '.join(lost)}.", ""]
    if how.failures:
        lines += [*(f"- Failed: {trial}: {reason}" for trial, reason in how.failures.items()), ""]
    if experiment.extra is not None:
        lines += [*experiment.extra(outcomes), ""]
    if not experiment.within and (said := settings.lines(outcomes)):
        lines += [*said, ""]
    if picture is not None:
        lines += [f"![{experiment.title}]({picture})", ""]
    if drawn is not None:
        lines += [f"[What is drawn, in numbers]({drawn})", ""]
    return "\n".join(lines)


def table(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[str]:
    """Return a table with one line for each method and form, and one column for each x.

    A line has the accounted epsilon of its runs; the paper's numbers have lines of their own.
    """
    if not outcomes:
        return []
    levels = [o for o in outcomes if _is_level(o)]  # without privacy, and the same for every x
    xs = list(dict.fromkeys(o.trial.x for o in outcomes if not _is_level(o)))
    seeds = {
        spread(outcomes, *key).n for key in dict.fromkeys((o.trial.row, o.trial.x, o.trial.form) for o in outcomes)
    }
    head = ["", "", "honest epsilon", *(_head(experiment, x, alone=len(xs) == 1) for x in xs)]
    head += ["without privacy"] if levels else []
    body: list[list[str]] = []
    for row in dict.fromkeys(o.trial.row for o in outcomes):
        said = [experiment.paper.get((row, x)) for x in xs]
        said += [experiment.paper.get((row, "none"))] if levels else []
        if any(number is not None for number in said):
            body.append([row, "in the paper", "", *("" if number is None else f"{number:g}" for number in said)])
        forms = [f for f in FORMS if any((o.trial.row, o.trial.form) == (row, f) for o in outcomes)]
        plain = [o for o in outcomes if (o.trial.row, o.trial.form) == (row, "reference")]
        if plain and len(forms) > 1 and all(_is_level(o) for o in plain):
            forms.remove("reference")  # its level stands at the end of the first line
        for form in forms:
            body.append(_line(outcomes, row, form, xs, seeds, levels=bool(levels), first=form == forms[0]))
    return [_seeds(seeds), "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)] + [
        "| " + " | ".join(cells) + " |" for cells in body
    ]


def _is_level(outcome: Outcome) -> bool:
    return outcome.trial.form == "reference" and outcome.trial.x == "none"


def _head(experiment: Experiment, x: float | str, alone: bool) -> str:
    shown = f"{x:g}" if isinstance(x, float | int) else x
    return f"{experiment.x} {shown}" if alone or isinstance(x, float | int) else shown


def _line(
    outcomes: Sequence[Outcome],
    row: str,
    form: str,
    xs: Sequence[float | str],
    seeds: set[int],
    *,
    levels: bool,
    first: bool,
) -> list[str]:
    """Return the cells of one method in one form."""
    cells = [_shown(spread(outcomes, row, x, form), seeds) for x in xs]
    if levels:
        cells.append(_shown(spread(outcomes, row, "none", "reference"), seeds) if first else "")
    spent = [up(e) for x in xs if (e := honest(outcomes, row, x, form)) is not None]
    return [row, HEADS[form], ", ".join(spent if len(set(spent)) > 1 else spent[:1]) or "infinite", *cells]


def _seeds(counts: set[int]) -> str:
    """Return in words over how many seeds the numbers are taken, if all have as many."""
    if counts == {1}:
        return "One seed."
    if len(counts) == 1:
        return f"Mean ± standard deviation over {counts.copy().pop()} seeds."
    return "Mean ± standard deviation over seeds."


def _shown(value: Spread, seeds: set[int]) -> str:
    """Return a score; where the table mixes numbers of seeds, with its own."""
    if not value.n:
        return ""
    text = f"{value.mean:.2f}" if abs(value.mean) >= 1 or value.mean == 0 else f"{value.mean:.4f}"
    text += "" if math.isnan(value.deviation) else f" ± {value.deviation:.2f}"
    if len(seeds) == 1:
        return text
    return f"{text} (one seed)" if value.n == 1 else f"{text} ({value.n} seeds)"


def files(folder: Path, experiment: Experiment) -> tuple[Path, Path, Path, Path]:
    """Return the paths of an experiment's page, picture, scores and curves in a folder of pages."""
    paper, item = experiment.name.split("/")
    subfolder = folder / paper
    return (
        folder / f"{paper}.md",
        subfolder / f"{item}.png",
        subfolder / f"{item}.csv",
        subfolder / f"{item}-curves.csv",
    )


def require(folder: Path, experiment: Experiment) -> None:
    """Raise RunError if the page cannot be written into a folder; called before anything runs."""
    path, picture, *_ = files(folder, experiment)
    try:
        for wanted in (folder, picture.parent):
            existing = next(p for p in (wanted, *wanted.absolute().parents) if p.exists())
            if not existing.is_dir():
                raise RunError(f"cannot write pages into {folder}: {existing} is not a folder.")
            if not os.access(existing, os.W_OK | os.X_OK):
                raise RunError(f"cannot write pages into {folder}: {existing} is not writable.")
        if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
            raise RunError(f"cannot write {path}: it is not a file, or it is not writable.")
    except OSError as error:
        raise RunError(f"cannot write pages into {folder}: {error.strerror or error}.") from error
    _part(_read(path), path, experiment)


def better_results(folder: Path, experiment: Experiment, finished: int, how: Provenance) -> str:
    """Return, in words, the results of an existing section that a new one would lose; empty if there are none.

    A section made by the same command is better while it has more finished runs, unless the new one is complete. A
    section made by another command is better if it is at full scale and the new one is not, or if the new one has no
    runs at all."""
    path, _, numbers, _ = files(folder, experiment)
    match = _part(_read(path), path, experiment)
    if match is None:
        return ""
    old = match.group()
    said = re.search(r"^    (sordino reproduce .*)$", old, re.MULTILINE)
    command = said.group(1) if said is not None else how.command
    if so_far := re.search(r"^So far (\d+) of \d+ runs\.$", old, re.MULTILINE):
        runs = int(so_far.group(1))
    else:
        runs = max(0, len(_read(numbers).splitlines()) - 1) if numbers.is_file() else how.wanted
    if command != how.command and command == f"sordino reproduce {experiment.name}":
        return f"{runs} runs at full scale"
    fewer = finished < min(runs, how.wanted) if command == how.command else runs and not finished
    return f"{runs} finished runs" if fewer else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeError) as error:
        raise RunError(f"cannot read {path}: {error}. Move it away.") from error


def _part(text: str, path: Path, experiment: Experiment) -> re.Match[str] | None:
    """Find the experiment's section of a page, including its begin and end marks."""
    begin, end = (f"<!-- {word} {experiment.name} -->" for word in ("begin", "end"))
    match = re.search(re.escape(begin) + ".*?" + re.escape(end), text, re.DOTALL)
    expected = int(match is not None)
    if (text.count(begin), text.count(end)) != (expected, expected):
        raise RunError(f"{path}: the marks of {experiment.name} are damaged; remove them.")
    return match


def put(path: Path, experiment: Experiment, text: str, heading: str) -> None:
    """Replace the experiment's section of a page, or add it; the rest of the page is left unchanged."""
    part = f"<!-- begin {experiment.name} -->\n{text.strip()}\n<!-- end {experiment.name} -->"
    old = _read(path) or f"# {heading}\n"
    if (match := _part(old, path, experiment)) is not None:
        new = old[: match.start()] + part + old[match.end() :]
    else:
        new = old.rstrip("\n") + "\n\n" + part + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def csv(experiment: Experiment, outcomes: Sequence[Outcome]) -> str:
    """Return the scores as CSV, one line per run."""
    return to_csv(
        [
            {
                "row": o.trial.row,
                experiment.x.replace(" ", "_"): o.trial.x,
                "form": o.trial.form,
                "seed": o.trial.seed,
                "method": o.trial.keys["method"],
                "score": round(o.score, 4),
                "honest_epsilon": o.honest,
                "claimed_epsilon": (o.result.get("claim") or {}).get("epsilon"),
                "rounds": o.result["rounds"],
                "bytes_up": sum(int(r.get("bytes_up") or 0) for r in o.records),
                "seconds": round(sum(float(r.get("seconds") or 0) for r in o.records), 2),
            }
            for o in outcomes
        ]
    )
