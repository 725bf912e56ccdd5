"""With what the run was made: its spec, versions and machine, its notes, and where it took place."""

from __future__ import annotations

from typing import Any

from sordino.report.document import Block, DataTable, FactSheet, Listing, Paragraph, Section
from sordino.report.run.fields import RunSources, is_number, one_line

KEYS = 300  # most keys of a spec that are shown
NOTES = 100
PLACES = {
    "simulator": "all clients simulated in one process",
    "workers": "clients simulated by several processes of one machine",
    "ray": "clients simulated by a Ray cluster",
    "flower": "real sites over Flower",
}


def section(run: RunSources) -> Section | None:
    """Return the spec, the environment and the notes of a run."""
    facts, keys = _facts(run), _spec(run)
    if not facts and not keys:
        return None
    blocks: list[Block] = []
    if facts:
        source = "public/plan.json: environment, device, channel, gradient_path; public/spec.toml; public/seal.json"
        blocks += [Paragraph("What is needed to repeat the run, apart from its data."), FactSheet(tuple(facts), source)]
    if notes := run.result.texts("notes")[:NOTES]:
        blocks += [Paragraph("What the run noted for everybody:"), Listing(notes)]
    blocks += _owners(run)
    if keys:
        blocks.append(
            DataTable(
                "All keys of the run file", ("key", "value"), keys, source="public/spec.toml",
                note="Without paths, names of files, and the seed of a run on private data.",
            )
        )  # fmt: skip
    return Section("environment", "How was the run made?", tuple(blocks), folded=True)


def _facts(run: RunSources) -> list[tuple[str, str]]:
    plan, spec, environment = run.plan, run.spec, run.plan.part("environment")
    out = []
    for label, value in (
        ("Sordino", run.seal.text("sordino")),
        ("code", run.seal.text("code")),
        ("method", plan.text("method") or spec.text("method")),
        ("algorithm", plan.text("algorithm") or spec.text("algorithm")),
        ("channel", plan.text("channel") or spec.text("channel")),
        ("model", spec.text("model")),
        ("features", spec.text("features")),
    ):
        if value:
            out.append((label, value[:200]))
    if (number := plan.count("parameters")) is not None:
        out.append(("trainable parameters", f"{number:,}"))
    if where := spec.text("federation"):
        out.append(("clients ran as", PLACES.get(where, where)))
    if path := plan.text("gradient_path"):
        reason = plan.text("gradient_reason")
        out.append(("gradients of single records", f"{path}: {reason}" if reason else path))
    for label, value in (("device", plan.text("device")), *((n, environment.text(n)) for n in ("machine", "python"))):
        if value:
            out.append((label, value[:200]))
    for name in ("torch", "numpy"):
        if value := environment.text(name):
            out.append((name, value[:200]))
    if (threads := environment.count("threads")) is not None:
        out.append(("threads", f"{threads:,}"))
    return out


def _spec(run: RunSources) -> tuple[tuple[str, str], ...]:
    data = run.spec.data if isinstance(run.spec.data, dict) else {}
    return tuple((one_line(str(key))[:80], _shown(value)) for key, value in list(data.items())[:KEYS])


def _shown(value: Any) -> str:
    """Return a value of a spec as it stands in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if is_number(value):
        return f"{value:g}"
    if isinstance(value, int):
        return "a number too large to show"
    if isinstance(value, list | tuple):
        return one_line(", ".join(_shown(v) for v in value[:200]))
    if isinstance(value, dict):
        return one_line(", ".join(f"{k} = {_shown(v)}" for k, v in list(value.items())[:50]))
    return one_line(str(value))


def _owners(run: RunSources) -> list[Block]:
    """Return what only the owner was told."""
    owner = run.records.owner
    if owner is None or not run.owners:
        return []
    out: list[Block] = []
    if notes := tuple(one_line(note) for note in owner.notes[:NOTES] if note.strip()):
        out += [Paragraph("What the owner alone was told (private/notes.txt):"), Listing(notes)]
    if owner.error:
        out.append(Paragraph(f"The run stopped with an error: {one_line(owner.error)}", "warning"))
    return out
