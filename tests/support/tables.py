"""A small table of people, its schema, and runs on it: a fraction of a second each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sordino.runs import build, run
from sordino.spec import spec

SCHEMA = """
[age]
min = 18
max = 90
[sex]
values = ["F", "M"]
[income]
min = 0
max = 100000
log = true
"""
LABELS = {"ill": 'values = ["no", "yes"]', "score": "min = 20\nmax = 80"}


def people(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    """Return rows whose numbers have many digits, so that a ledger can tell them apart."""
    draw = np.random.default_rng(seed)
    table = pd.DataFrame({"age": draw.uniform(20, 80, rows).round(5), "sex": draw.choice(["F", "M"], rows)})
    table["income"] = draw.uniform(0, 90_000, rows).round(4)
    table["ill"] = np.where(table.age > 50, "yes", "no")
    table["score"] = table.age.clip(20, 80)
    return table


def trained(folder: Path, label: str = "ill", table: pd.DataFrame | None = None, **keys: Any) -> run.Result:
    """Train on a table with this label in folder/t.csv; its run folder is folder/runs/it."""
    other = [c for c in LABELS if c != label]
    (people() if table is None else table).drop(columns=other).to_csv(folder / "t.csv", index=False)
    (folder / "schema.toml").write_text(SCHEMA + f"[{label}]\n{LABELS[label]}\n")
    wanted = {"dataset": str(folder / "t.csv"), "label_column": label, "schema": str(folder / "schema.toml")}
    wanted |= {"clients": 3, "rounds": 3, "epsilon": 8.0, "device": "cpu", "learning_rate": 2.0, "name": "it"}
    wanted |= {"out": str(folder / "runs"), "seed": 0} | keys
    return run.execute(build.from_spec(spec.from_dict(wanted)), own_model=False)
