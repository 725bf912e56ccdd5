"""Theorem 3 of Xue et al. (002): how far noise moves the model, measured and as bounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sordino.core.errors import RunError
from sordino.core.parts import PUBLIC, locate
from sordino.papers.base import Outcome

MOVED = ("measured, rms", "measured, largest", "Theorem 3 as printed", "Theorem 3 as it should be, one round")


def _model(folder: Path) -> dict[str, torch.Tensor]:
    path = locate(folder, PUBLIC, "model.safetensors")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        again = f"Remove {folder}, and the same command runs it anew."
        raise RunError(f"{path} is missing or damaged. {again}") from error


def moved(outcomes: Sequence[Outcome]) -> dict[str, list[tuple[float, float]]]:
    """Return, by number of rounds, the distance between the two models and the bound of Theorem 3 with constant 1."""
    out: dict[str, list[tuple[float, float]]] = {name: [] for name in MOVED}
    models = {(o.trial.row, o.trial.x): o for o in outcomes}
    for (row, x), noisy in models.items():
        twin = models.get(("no noise", x))
        if row != "noise" or twin is None:
            continue
        a, b = (_model(o.folder) for o in (noisy, twin))
        apart = torch.cat([(a[k] - b[k]).double().flatten() for k in a])
        keys, m = noisy.trial.keys, apart.numel()
        n, sigma0, epsilon = float(keys["clients"]), float(keys["sigma0"]), float(keys["epsilon"])
        values = (
            float(apart.square().mean().sqrt()),
            float(apart.abs().max()),
            sigma0 * m * math.sqrt(math.log(1 / 1e-5)) / (n * epsilon),
            noisy.records[-1]["decided"]["noise_most"] / math.sqrt(n),
        )
        for name, value in zip(MOVED, values, strict=True):
            out[name].append((float(x), value))
    return out


def deviations(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the distances and bounds as a table."""
    found = moved(outcomes)
    out = ["| rounds | " + " | ".join(MOVED) + " |", "|" + " --- |" * (1 + len(MOVED))]
    for points in zip(*found.values(), strict=True):
        out.append(f"| {points[0][0]:g} | " + " | ".join(f"{value:.3g}" for _, value in points) + " |")
    return [
        *out,
        "",
        "Printed: sigma_0 M sqrt(ln(1/delta)) / (n epsilon), which no weight comes near. Right for one round is the "
        "standard deviation of a mean: the largest of a client's noise over the root of n.",
    ]
