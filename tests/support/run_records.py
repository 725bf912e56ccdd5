"""Hand-made records of a run, as a folder that a report is made of."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from sordino.privacy.accountants import gdp
from sordino.report.reading import read_run
from sordino.report.run.fields import RunSources

SPEC = 'method = "dp-sgd"\ndataset = "patients"\nrounds = 3\n'
MULTIPLIER = 5.0
ROUNDS = 3


def guarantee(viewer: str = "server", **changes: Any) -> dict[str, Any]:
    """The guarantee of three full-batch Gaussian releases."""
    known = {
        "epsilon": gdp.epsilon_of_mu(ROUNDS**0.5 / MULTIPLIER, 1e-5), "delta": 1e-5, "unit": "record",
        "relation": "add/remove", "viewer": viewer, "rounds": ROUNDS, "mode": "secure", "reason": None,
        "channel": "direct", "public": ["how many records each client has"], "exact": False, "infinite": False,
    }  # fmt: skip
    return known | changes


def infinite(viewer: str = "server", reason: str = "no noise is added", **changes: Any) -> dict[str, Any]:
    """No guarantee."""
    return guarantee(viewer, epsilon=None, infinite=True, reason=reason, **changes)


def accounting(viewers: tuple[str, ...] = ("server", "public"), event: Any = None) -> dict[str, Any]:
    """The events of the run."""
    inside = event or {"kind": "Gaussian", "noise_multiplier": MULTIPLIER}
    spent = [{"round": t, "event": {"kind": "Repeated", "event": inside, "count": t}} for t in (1, ROUNDS)]
    one = {"unit": "record", "relation": "add/remove", "reason": None, "left_out": None, "spent": spent}
    return {"delta": 1e-5, "spendable": 1e-5, "rounds": ROUNDS, "viewers": dict.fromkeys(viewers, one)}


def write(
    run: Path,
    guarantees: tuple[dict[str, Any], ...] = (),
    plan: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
    finished: bool = True,
    **files: Any,
) -> Path:
    """Write the public part of a run.

    Args:
        run: the folder of the run.
        guarantees: by viewer, that of the budget first.
        plan: fields of the plan that differ.
        result: fields of the result that differ.
        finished: whether there is a result.
        **files: the contents of further files by name without ".json", None for no file; and `spec`, a text.
    """
    public = run / "public"
    public.mkdir(parents=True)
    held = guarantees or (guarantee(), guarantee("public"))
    contents: dict[str, Any] = {
        "plan": {
            "method": "dp-sgd", "algorithm": "fedavg", "promise": held[0], "clients": 8, "expected_cohort": 8.0,
            "public_data": False, "evaluated_on": None,
        } | (plan or {}),
        "inputs": {"task": "classification", "class_names": ["ill", "well"]},
        "accounting": accounting(),
    }  # fmt: skip
    if finished:
        by_viewer = {g["viewer"]: g for g in held}
        contents["result"] = {
            "guarantee": held[0], "guarantees": by_viewer, "claim": None, "rounds": ROUNDS, "together": None,
        } | (result or {})  # fmt: skip
    (public / "spec.toml").write_text(files.pop("spec", SPEC))
    lines = [json.dumps({"round": t + 1, "epsilon": {"server": 0.1 * t}}) for t in range(ROUNDS if finished else 1)]
    (public / "records.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for name, content in (contents | files).items():
        if content is not None:
            (public / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return run


def seal(run: Path, **changes: Any) -> Path:
    """Write a seal with the true hashes of the public files, and commitments that nobody can open."""
    public = run / "public"
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(public.iterdir())}
    content = {"version": 1, "algorithm": "sha256", "sordino": "0.1.0", "code": "c" * 64, "plugins": {}, "files": files}
    content |= {"private": "a" * 64, "ledger": "b" * 64} | changes
    (public / "seal.json").write_text(json.dumps(content, indent=2) + "\n")
    return run


def sources(run: Path, owner: bool = False) -> RunSources:
    """The records of a run, as its report reads them."""
    records = read_run(run, "owner" if owner else "public")
    return RunSources(records, list(records.damage))
