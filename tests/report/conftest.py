"""Comparisons that nobody ran: the files that cells would have left, with numbers of our choosing."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest


class Fabricated:
    """comparison(method, epsilon, accuracies, ...) puts one cell a seed into the folder."""

    def __init__(self, folder):
        self.folder, self.cells = folder, []

    def add(self, method, epsilon, accuracies, accounted=None, claim=None, unit="record", relation="add/remove",
            viewer="server", channel="direct", noise=0.1, rounds=10, reason=None, losses=None,
            errors=None, notes=()):  # fmt: skip
        accounted = epsilon if accounted is None and epsilon is not None else accounted
        endless = accounted is None or math.isinf(accounted)
        for seed, accuracy in enumerate(accuracies):
            name = f"{method}-seed{seed}" if epsilon is None else f"{method}-eps{epsilon:g}-seed{seed}"
            self.cells.append({"name": name, "method": method, "epsilon": epsilon, "seed": seed})
            at = self.folder / "cells" / name
            at.mkdir(parents=True)
            guarantee = {
                "epsilon": None if endless else accounted, "delta": 1e-5, "unit": unit, "relation": relation,
                "viewer": viewer, "rounds": rounds, "infinite": endless,
                "reason": (reason or "noise depends on private values") if endless else None,
            }  # fmt: skip
            result = {"guarantee": guarantee, "accuracy": accuracy, "rounds": rounds, "claim": claim, "metrics": {},
                      "notes": list(notes)}  # fmt: skip
            measured = {} if errors is None else {"metrics": {"rmse": errors[seed], "mae": errors[seed] / 2}}
            (at / "result.json").write_text(json.dumps(result))
            (at / "plan.json").write_text(json.dumps({"channel": channel}))
            loss = 1.0 if losses is None else losses[seed]
            lines = [
                {"round": r, "clients": 8, "epsilon": {}, "bytes_up": 100, "bytes_down": 100, "seconds": 0.5,
                 "loss": loss, "noise": None if noise is None else noise * (1 + 0.2 * seed) / r**0.5,
                 "accuracy": None if accuracy is None else accuracy * (1 - math.exp(-r / 2)), **measured}
                for r in range(1, rounds + 1)
            ]  # fmt: skip
            (at / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (self.folder / "comparison.json").write_text(json.dumps({"methods": {}, "cells": self.cells}))
        return self

    @staticmethod
    def claim(epsilon, scope="total"):
        return {"epsilon": epsilon, "delta": 1e-5, "scope": scope, "unit": "record",
                "source": "Somebody (2020), Theorem 1", "why_not": "the noise follows private values"}  # fmt: skip

    def fail(self, method, epsilon, seed):
        self.cells.append({"name": f"{method}-gone{seed}", "method": method, "epsilon": epsilon, "seed": seed})
        (self.folder / "comparison.json").write_text(json.dumps({"methods": {}, "cells": self.cells}))
        return f"{method}-gone{seed}"


@pytest.fixture
def fabricated(tmp_path):
    return Fabricated(tmp_path)


@pytest.fixture
def typical(fabricated):
    """Every kind of line: two sound methods of one block, one of another, two paper forms, the reference."""
    draw = np.random.default_rng(3)

    def around(mean):
        return (mean + 0.01 * draw.standard_normal(3)).tolist()

    for epsilon, level in ((0.5, 0.80), (2.0, 0.9), (8.0, 0.95)):
        fabricated.add("dp-sgd", epsilon, around(level))
        fabricated.add("adaptive-noise", epsilon, around(level + 0.015), accounted=0.97 * epsilon, noise=0.05)
        fabricated.add("dp-fedavg", epsilon, around(level - 0.1), unit="client", viewer="public", noise=None)
        fabricated.add(
            "nbafl-paper", epsilon, around(level + 0.03), accounted=math.inf, claim=fabricated.claim(epsilon, "round")
        )
        fabricated.add(
            "geodp-paper", epsilon, around(level + 0.02), accounted=21.0 * epsilon, claim=fabricated.claim(epsilon)
        )
        fabricated.add(
            "fedsdp-paper", epsilon, around(level + 0.025), accounted=math.inf, claim=fabricated.claim(epsilon)
        )
    return fabricated.add("none", None, around(0.985), accounted=math.inf, noise=None, reason="no noise is added")
