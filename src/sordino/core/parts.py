"""The two parts of a run folder: one to publish, and one for the owner only.

    RUN/public    for anyone named in the guarantee: model, spec, plan, curves, guarantee
    RUN/private   for the owner (mode 0700): draws, bytes, seconds, checkpoints, clients' state, pages of the ledger

A copy of the public part alone (`sordino export`) has its files at the top level, as do folders written by earlier
versions.
"""

from __future__ import annotations

from pathlib import Path

PUBLIC, PRIVATE = "public", "private"


def locate(run: Path, part: str, name: str) -> Path:
    """Return the path of a file of a run: inside its part, or at the top level of a folder without parts."""
    inside = run / part / name
    flat = run / name
    return flat if not inside.exists() and flat.is_file() else inside


def runs_below(folder: Path) -> list[Path]:
    """Return the run folders inside a folder, sorted; a run folder is one that contains a plan."""
    folders = {p.parent for p in folder.glob("*/plan.json") if p.parent.name != PUBLIC}
    return sorted(folders | {p.parent.parent for p in folder.glob(f"*/{PUBLIC}/plan.json")})
