"""The part of a results page that one experiment makes: what was run, the table, the picture."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sordino.core.errors import RunError
from sordino.core.rounding import up
from sordino.experiments.base import FORMS, Experiment, Outcome, honest, spread
from sordino.report.summary import Spread
from sordino.report.tables import to_csv

HEADS = {
    "printed": "ours, as printed",
    "sound": "ours, sound",
    "features": "sound, fixed features",
    "reference": "no privacy",
}


@dataclass(frozen=True)
class How:
    """How the runs of a page came about."""

    command: str
    scale: float = 1.0
    changed: Sequence[str] = ()  # keys set by hand, as KEY=VALUE
    failures: Mapping[str, str] = field(default_factory=dict)  # why, by trial
    wanted: int = 0  # runs that it takes


def section(experiment: Experiment, found: Sequence[Outcome], how: How, picture: str | None) -> str:
    """Markdown of one figure or table."""
    lines = [f"## {experiment.title}", "", experiment.about, "", f"    {how.command}", ""]
    if how.scale != 1:
        lines += [f"Run at scale {how.scale:g}: fewer rounds, clients and seeds than the paper's setting.", ""]
    if how.changed:
        compared = ", so nothing here compares with the paper's numbers" if experiment.paper else ""
        lines += [f"Changed by hand: {', '.join(how.changed)}{compared}.", ""]
    if len(found) < how.wanted:
        lines += [f"So far {len(found)} of {how.wanted} runs.", ""]
    lines += [*table(experiment, found), ""]
    if lost := list(dict.fromkeys(f"{o.trial.row} at {o.trial.x}" for o in found if o.diverged)):
        lines += [f"Diverged, so that the loss is no finite number at the end: {', '.join(lost)}.", ""]
    if how.failures:
        lines += [*(f"- Failed: {trial}: {reason}" for trial, reason in how.failures.items()), ""]
    if experiment.extra is not None:
        lines += [*experiment.extra(found), ""]
    if picture is not None:
        lines += [f"![{experiment.title}]({picture})", ""]
    return "\n".join(lines)


def table(experiment: Experiment, found: Sequence[Outcome]) -> list[str]:
    """One line a row and x: the paper's number, ours in every form, and the honest epsilon beside each."""
    forms = [f for f in FORMS if any(o.trial.form == f for o in found)]
    if not forms:
        return []
    keys = dict.fromkeys((o.trial.row, o.trial.x) for o in found)
    keys |= dict.fromkeys(k for k in experiment.paper if k in keys)
    head = ["", experiment.x] + (["paper"] if experiment.paper else [])
    for form in forms:
        head += [HEADS[form]] + ([] if form == "reference" else ["honest epsilon"])
    out = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row, x in keys:
        cells = [row, f"{x:g}" if isinstance(x, float | int) else x]
        if experiment.paper:
            number = experiment.paper.get((row, x))
            cells.append("" if number is None else f"{number:g}")
        for form in forms:
            cells.append(_shown(spread(found, row, x, form)))
            if form != "reference":
                epsilon = honest(found, row, x, form)
                cells.append("" if epsilon is None else up(epsilon))
        out.append("| " + " | ".join(cells) + " |")
    return out


def _shown(value: Spread) -> str:
    if not value.n:
        return ""
    text = f"{value.mean:.2f}" if abs(value.mean) >= 1 or value.mean == 0 else f"{value.mean:.4f}"
    return text + ("" if math.isnan(value.deviation) else f" ± {value.deviation:.2f}") + f" ({value.n})"


def put(path: Path, experiment: Experiment, text: str, heading: str) -> None:
    """Replace the experiment's part of a page, or add it; everything else on the page stays as it is."""
    begin, end = (f"<!-- {word} {experiment.name} -->" for word in ("begin", "end"))
    part = f"{begin}\n{text.strip()}\n{end}"
    old = path.read_text(encoding="utf-8") if path.is_file() else f"# {heading}\n"
    if old.count(begin) != old.count(end) or old.count(begin) > 1:
        raise RunError(f"{path}: the marks of {experiment.name} are damaged; remove them.")
    if begin in old:
        new = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: part, old, flags=re.DOTALL)
    else:
        new = old.rstrip("\n") + "\n\n" + part + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def csv(experiment: Experiment, found: Sequence[Outcome]) -> str:
    """One line a run."""
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
            for o in found
        ]
    )
