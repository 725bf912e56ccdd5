"""The records of a made-up run with everything in it that a report may show, public and private, in known numbers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from sordino.report.growing import owner_record, public_record
from sordino.report.reading import OwnerFiles, RunRecords
from sordino.report.run.fields import RunSources
from support.run_records import accounting, guarantee

ROUNDS, CLIENTS = 6, 5
ACCURACY = (0.5, 0.625, 0.75, 0.75, 0.875, 0.8125)
LOSS = (1.5, 1.1, 0.9, 0.9, 0.6, 0.7)
EPSILON = tuple(0.25 * t for t in range(1, ROUNDS + 1))
CONFUSION = [[30, 10, 0], [5, 40, 5], [0, 10, 60]]  # 130 of 160 are right: 0.8125
PUBLIC = ("spec", "plan", "inputs", "result", "accounting", "baseline", "audit", "seal", "tune")
PRIVATE = ("participation", "federation")
SECRETS = (  # private numbers and names that no public document may show
    "0.1237", "0.4563", "7.7771", "31337", "424242", "0.31313", "clinic-of-st-anna", "0.86421", "0.97531", "0.73939",
    "told-to-the-owner",
)  # fmt: skip


def metrics(t: int) -> dict[str, float]:
    """The metrics of a round."""
    return {"balanced_accuracy": 0.5 + 0.05 * t, "auc": 0.6 + 0.05 * t, "class_gap": 0.4 - 0.05 * t,
            "brier": 0.3 - 0.02 * t, "worst_client": 0.4 + 0.05 * t, "client_gap": 0.3, "client_std": 0.1}  # fmt: skip


def public_round(t: int) -> dict[str, Any]:
    """The public record of a round."""
    return {
        "round": t, "epsilon": {"server": EPSILON[t - 1], "public": EPSILON[t - 1], "client": None},
        "loss": LOSS[t - 1], "accuracy": ACCURACY[t - 1], "metrics": metrics(t), "clip": 1.0 / t,
        "evaluated_on": "public test data", "noise": 2.0 / t, "confusion": CONFUSION,
    } | ({"lost": "too few clients answered"} if t == 4 else {})  # fmt: skip


def owner_round(t: int) -> dict[str, Any]:
    """The owner's record of a round."""
    return {
        "round": t, "clients": 3 + t % 2, "bytes_up": 31337 * t, "bytes_down": 424242 * t, "seconds": 0.31313 * t,
        "answers": 3, "noise": 2.0 / t, "decided": {"temperature": 7.7771 * t, "note": "a word"},
        "measured": {
            "clipped": {"update": 0.1237 * t, "count": 0.5}, "norm": {"update": 0.4563 * t},
            "signal": {"1": 1.0, "2": 4.0}, "noise": {"1": 10.0 * t, "2": 2.0},
        },
        "by_client": {"metric": "accuracy", "clients": {"0": [0.86421, 40], "1": [0.73939, 20], "7": [0.97531, 9]}}
        if t == ROUNDS else None,
    }  # fmt: skip


def bound(value: float) -> dict[str, float]:
    return {"epsilon": value, "ceiling": 6.0, "confidence": 0.98}


def audit() -> dict[str, Any]:
    trial = {"placement": "apart", "trials": 500, "runs": 1, "shown": bound(0.25), "gaussian": bound(0.75),
             "one_run": bound(0.5), "refuted": False, "at": None}  # fmt: skip
    move = {"outlet": "update", "canary": "usual", "change": "replaced", "moved": 1.5, "allowed": 2, "fails": False}
    return {
        "method": "dp-sgd", "unit": "record", "relation": "add/remove", "viewer": "server", "channel": "direct",
        "rounds": ROUNDS, "delta": 1e-5, "confidence": 0.95, "claimed": 0.5, "accounted": 1.5, "played": 1.5,
        "trials": [trial], "moves": [move], "planted": bound(0.125), "notes": ["a note"], "alarm": False, "least": 0.5,
        "least_gaussian": 0.75, "sentence": "Audited: at least 0.5.",
    }  # fmt: skip


def attack() -> dict[str, Any]:
    figure = {"metric": "AUC", "value": 0.625, "low": 0.5, "high": 0.75, "chance": 0.5, "unit": "number"}
    return {
        "attack": "loss-threshold", "kind": "membership", "view": "server", "figures": [figure],
        "twin": [figure | {"value": 0.875}], "sentence": "It tells members.", "limit": "At most 7 %.", "warning": None,
        "note": None, "file": "private/attacks/loss-threshold-server.json",
        "roc": {"this run": [[0.0, 0.01, 0.1, 1.0], [0.0, 0.02, 0.3, 1.0]],
                "without privacy": [[0.0, 0.01, 0.1, 1.0], [0.0, 0.5, 0.9, 1.0]]},
    }  # fmt: skip


def contents() -> dict[str, Any]:
    """Everything: the public files by name, the private ones, and the lines of both record files."""
    main = guarantee(rounds=3)
    held = {
        "spec": {"method": "dp-sgd", "dataset": "patients", "rounds": ROUNDS, "clip": 0.5, "delta": 1e-5,
                 "budgets": "1,1,2,2,2", "federation": "flower", "clients": CLIENTS, "standardise": False},
        "plan": {
            "method": "dp-sgd", "algorithm": "fedavg", "promise": main, "clients": CLIENTS, "channel": "direct",
            "public_data": True, "evaluated_on": "public test data", "noise_multiplier": 5.0, "parameters": 62,
            "budgets": [{"epsilon": 1.0, "delta": 1e-5, "clients": 2, "participations": 3},
                        {"epsilon": 2.0, "delta": 1e-5, "clients": 3, "participations": 6}],
            "evaluation": {"releases": 2, "epsilon": 0.5, "delta": 1e-5, "deviation": 0.01, "apart": False, "text": ""},
            "chosen": {"kinds": [{"profile": "standard", "resources": "high", "data": "dense", "clients": CLIENTS,
                                  "choice": choice()}]},
            "device": "cpu", "gradient_path": "book-keeping", "gradient_reason": "there is a rule",
            "environment": {"python": "3.11", "torch": "2.13", "numpy": "2.4", "machine": "x86_64", "threads": 1},
        },
        "inputs": {"task": "classification", "class_names": ["ill", "well", "unknown"]},
        "result": {
            "guarantee": main, "guarantees": {"server": main, "public": main | {"viewer": "public"}}, "rounds": ROUNDS,
            "accuracy": ACCURACY[-1], "metrics": metrics(ROUNDS), "confusion": CONFUSION, "notes": ["a learning rate"],
        },
        "accounting": accounting(),
        "baseline": {
            "rounds": 2, "accuracy": 0.9, "metrics": {"auc": 0.95, "worst_class": 0.85},
            "evaluated_on": "public test data",
            "curve": {"round": [1, 6], "loss": [0.9, 0.3], "accuracy": [0.8, 0.9], "metrics": {"auc": [0.9, 0.95]}},
        },
        "audit": audit(),
        "tune": {"settings": {"clip": 0.5, "method": "dp-sgd"}, "sentence": "In total epsilon = 1.5."},
        "seal": {"version": 1, "sordino": "0.1.0", "code": "c" * 64},
        "participation": {
            "clients": CLIENTS, "together": 1, "rounds": [1, 3, 5], "last": ROUNDS,
            "counts": [[2, 1, 0], [1, 1, 1], [2, 2, 2], [0, 0, 0], [2, 2, 1]], "by_number": [1, 0, 0, 2, 0, 1, 1],
        },
        "federation": {"sites": [{"name": "clinic-of-st-anna", "participations": 5, "answered": 6, "silent": 1,
                                  "failed": 2, "trouble": "no answer in time", "epsilon": 1.75}]},
        "attacks": [attack()],
        "notes": ["told-to-the-owner"],
        "rounds": [public_round(t) for t in range(1, ROUNDS + 1)],
        "owner_rounds": [owner_round(t) for t in range(1, ROUNDS + 1)],
    }  # fmt: skip
    return copy.deepcopy(held)


def choice() -> dict[str, Any]:
    """A choice of the Harmonizer, as its Choice.to_json returns it."""
    terms = {"privacy": 0.7, "utility": 1.0, "efficiency": 1.0, "prior": 1.0}
    return {
        "epsilon": 2.0, "delta": 1e-5, "dim": 62, "profile": "standard", "resources": "high", "data": "dense",
        "prior": 0.05, "pure": False, "weights": [0.3, 0.5, 0.2],
        "candidates": [{"mechanism": "gaussian", "scale": 6.9, "ratio": 54.0, "score": 0.925, **terms},
                       {"mechanism": "laplace", "scale": 5.9, "ratio": 413.0, "score": 0.467, **terms},
                       {"mechanism": "staircase", "note": "it cannot be sampled"}],
    }  # fmt: skip


def sources(held: dict[str, Any], owner: bool = False) -> RunSources:
    """Return the records of such a run as its report reads them; the owner's are there in either case.

    Raises:
        ValueError, TypeError, KeyError or AttributeError: if a line is so damaged that readers of records end there.
    """
    public = {name: held.get(name, {}) for name in PUBLIC}
    files = OwnerFiles(
        tuple(owner_record(json.dumps(r).encode()) for r in held.get("owner_rounds", ())),
        **{name: held.get(name, {}) for name in PRIVATE},
        attacks=tuple(held.get("attacks", ())),
        notes=tuple(held.get("notes", ())),
    )
    rounds = tuple(public_record(json.dumps(r).encode()) for r in held.get("rounds", ()))
    state = "finished" if public["result"] else "stopped"
    audience = "owner" if owner else "public"
    return RunSources(
        RunRecords(Path("runs/made-up"), "made-up", audience, state, rounds=rounds, owner=files, **public)
    )
