"""Comparisons that nobody ran: the public files that cells would have left, with numbers of our choosing."""

from __future__ import annotations

import json
import math
from pathlib import Path


class MadeUp:
    """The folder of a comparison; `add` puts one cell for every accuracy into it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cells = folder, []
        (folder / "public").mkdir(parents=True)

    def add(self, method, epsilon, accuracies, accounted=None, claim=None, unit="record", relation="add/remove",
            viewer="server", channel="direct", rounds=10, audited=None, notes=(), done=None, **keys):  # fmt: skip
        """Add one run for every accuracy; with `done` they have so many rounds and no result."""
        accounted = epsilon if accounted is None else accounted
        endless = accounted is None or math.isinf(accounted)
        promise = {
            "epsilon": None if endless else accounted, "delta": 1e-5, "unit": unit, "relation": relation,
            "viewer": viewer, "rounds": rounds, "mode": "research", "channel": channel, "infinite": endless,
            "reason": "no noise is added" if endless else None,
        }  # fmt: skip
        for seed, accuracy in enumerate(accuracies):
            name = f"{method}-seed{seed}" if epsilon is None else f"{method}-eps{epsilon:g}-seed{seed}"
            name = "".join(c if c.isalnum() or c in "-._" else "_" for c in name)
            self.cells.append({"name": name, "method": method, "epsilon": epsilon, "seed": seed})
            public = self.folder / "cells" / name / "public"
            public.mkdir(parents=True)
            noise = None if endless and claim is None else 0.5
            plan = {"method": method, "promise": promise, "channel": channel, "mode": "research", "public_data": True,
                    "noise_multiplier": 1.0 if epsilon else 0.0, "environment": {"python": "3.12"}}  # fmt: skip
            (public / "plan.json").write_text(json.dumps(plan))
            spec = {"method": method, "dataset": "patients", "rounds": rounds, "seed": seed, **keys}
            spec |= {} if epsilon is None else {"epsilon": epsilon}
            (public / "spec.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in spec.items()))
            lines = [
                {"round": r, "epsilon": {viewer: None}, "loss": 1 / r, "noise": noise,
                 "accuracy": None if accuracy is None else accuracy * (1 - math.exp(-r / 2))}
                for r in range(1, (rounds if done is None else done) + 1)
            ]  # fmt: skip
            (public / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            if done is None:
                result = {"guarantee": promise, "accuracy": accuracy, "rounds": rounds, "claim": claim, "metrics": {},
                          "notes": list(notes)}  # fmt: skip
                (public / "result.json").write_text(json.dumps(result))
            if audited is not None:
                audit = {"unit": unit, "viewer": viewer, "least": audited, "confidence": 0.95}
                (public / "audit.json").write_text(json.dumps(audit))
        return self.listed()

    def listed(self, *further):
        """Write the list of all cells, and of further ones that have not begun."""
        cells = [*self.cells, *({"name": n, "method": "dp-sgd", "epsilon": 2.0, "seed": 9} for n in further)]
        (self.folder / "public" / "cells.json").write_text(json.dumps({"cells": cells, "charged": None}))
        return self

    @staticmethod
    def claim(epsilon, scope="total"):
        return {"epsilon": epsilon, "delta": 1e-5, "scope": scope, "unit": "record", "viewer": "server",
                "source": "Somebody (2020), Theorem 1", "why_not": "the noise follows private values"}  # fmt: skip


def typical(folder: Path) -> MadeUp:
    """Return a comparison with every kind of line: two sound methods, one of another unit, a claim, the reference."""
    made = MadeUp(folder)
    for epsilon, level in ((1.0, 0.8), (4.0, 0.9)):
        made.add("dp-sgd", epsilon, [level, level + 0.02], audited=epsilon / 4, clip=0.5)
        made.add("adaptive-noise", epsilon, [level + 0.05, level + 0.06], notes=["a remark"], clip=1.0)
        made.add("dp-fedavg", epsilon, [level - 0.2, level - 0.1], unit="client", viewer="public")
        made.add("geodp-paper", epsilon, [level, level], accounted=21 * epsilon, claim=MadeUp.claim(epsilon))
        made.add("fedsdp-paper", epsilon, [level], accounted=math.inf, claim=MadeUp.claim(epsilon, "round"))
    return made.add("none", None, [0.97, 0.98])
