"""The two parts of a run folder: what may be handed out, and what is the owner's alone.

    RUN/public    for anyone whom the guarantee names: model, spec, plan, curves, guarantee
    RUN/private   for the owner (mode 0700): draws, bytes, seconds, checkpoints, clients' state, the ledger's pages

A copy of the public part alone (`sordino export`) has its files at the top, and so has a folder that an earlier
version wrote.
"""

from __future__ import annotations

from pathlib import Path

PUBLIC, PRIVATE = "public", "private"


def locate(run: Path, part: str, name: str) -> Path:
    """Return where a run folder keeps a file: inside its part, or at the top where it has no parts."""
    inside = run / part / name
    flat = run / name
    return flat if not inside.exists() and flat.is_file() else inside


def runs_below(folder: Path) -> list[Path]:
    """Return the run folders inside a folder, in order: those that have a plan."""
    found = {p.parent for p in folder.glob("*/plan.json") if p.parent.name != PUBLIC}
    return sorted(found | {p.parent.parent for p in folder.glob(f"*/{PUBLIC}/plan.json")})
