"""One page for all figures and tables of the papers, from the scores that stand beside their pages.

A line has the paper's number, ours as printed with the epsilon that is claimed and the one that holds, ours made sound
at the same epsilon, and the verdict of the figure.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.core.errors import RunError
from sordino.core.rounding import up
from sordino.papers.base import Experiment
from sordino.papers.page import files
from sordino.report.summary import Spread

HEAD = ("", "", "claimed epsilon", "in the paper", "ours, as printed", "honest epsilon", "ours, sound", "its epsilon")
SOUND = ("sound", "features")
AGAIN = "**To be computed again"  # stands on the page of a paper before what is older than its command
Line = Mapping[str, str]  # of a file of scores


@dataclass(frozen=True)
class Scores:
    """The scores of one row at one x in one form."""

    spread: Spread
    claimed: float | None
    honest: float

    @staticmethod
    def of(lines: Sequence[Line]) -> Scores | None:
        """Return the scores of these lines; None if there are none."""
        if not lines:
            return None
        claims = [float(line["claimed_epsilon"]) for line in lines if line["claimed_epsilon"]]
        honest = max(
            math.inf if line["honest_epsilon"] == "infinite" else float(line["honest_epsilon"]) for line in lines
        )
        return Scores(Spread.of(float(line["score"]) for line in lines), max(claims, default=None), honest)


def page(folder: Path, experiments: Mapping[str, Experiment], papers: Mapping[str, str]) -> str:
    """Return the page, from the files of scores in a folder of pages.

    Raises:
        RunError: if a file of scores is damaged.
    """
    out = [
        "# The papers, in one table",
        "",
        "This page has every number of the three papers that one of our figures or tables repeats, beside our own. "
        "*Claimed* is the epsilon that the paper states for its printed form, *honest* the one that our accountant "
        "finds for it. The sound form is the better one of its two, on the paper's network or on fixed features; where "
        "a row has none, it is the best of its figure at the same epsilon. Scores are accuracies in percent, means "
        "over seeds. "
        "`sordino reproduce --summary` writes this page from the scores beside the pages of the papers.",
        "",
    ]
    for paper, title in papers.items():
        out += [f"## {title}", ""]
        if AGAIN in _text(folder / f"{paper}.md"):
            out += [f"Some numbers of ours here are to be computed again: [its page]({paper}.md) says which.", ""]
        mine = [e for name, e in experiments.items() if name.startswith(f"{paper}/") and not e.within]
        out += ["| figure | verdict |", "| --- | --- |"]
        out += [f"| [{e.title}]({paper}.md) | {e.verdict or 'no verdict yet'} |" for e in mine]
        rows = [row for e in mine for row in _rows(folder, e)]
        if rows:
            out += ["", "| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
            out += ["| " + " | ".join(row) + " |" for row in rows]
        out.append("")
    return "\n".join(out).rstrip("\n") + "\n"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _rows(folder: Path, experiment: Experiment) -> list[tuple[str, ...]]:
    path = files(folder, experiment)[2]
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        return [_row(experiment, lines, row, x, number) for (row, x), number in experiment.paper.items()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: {error!r}. Run `sordino reproduce {experiment.name}` again.") from error


def _row(experiment: Experiment, lines: Sequence[Line], row: str, x: float | str, number: float) -> tuple[str, ...]:
    x_name, shown = experiment.x.replace(" ", "_"), f"{x:g}" if isinstance(x, float | int) else x
    here = [line for line in lines if line["row"] == row and _same(line[x_name], x)]
    printed, plain = (Scores.of([line for line in here if line["form"] == form]) for form in ("printed", "reference"))
    sound = _best(here) or (_best([line for line in lines if _same(line[x_name], x)]) if printed else None)
    where = "" if x == "none" else f", {experiment.x} {shown}" if isinstance(x, float | int) else f", {shown}"
    return (
        f"{experiment.name.partition('/')[2]}{where}",
        row,
        "" if printed is None or printed.claimed is None else f"{printed.claimed:g}",
        f"{number:g}",
        _score(printed or plain),
        "" if printed is None else up(printed.honest),
        _score(sound),
        "" if sound is None else up(sound.honest),
    )


def _best(lines: Sequence[Line]) -> Scores | None:
    """Return the best scores of a sound form, of one method; None if there is no sound form."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line["form"] in SOUND:
            groups.setdefault((line["row"], line["form"]), []).append(line)
    found = [scores for group in groups.values() if (scores := Scores.of(group))]
    return max(found, key=lambda s: s.spread.mean, default=None)


def _same(text: str, x: float | str) -> bool:
    return text == x if isinstance(x, str) else _number(text) == float(x)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _score(found: Scores | None) -> str:
    if found is None or not found.spread.n:
        return ""
    mean = found.spread.mean
    return f"{mean:.2f}" if abs(mean) >= 1 or mean == 0 else f"{mean:.4f}"
