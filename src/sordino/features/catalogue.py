"""Fixed features by name, and several of them side by side.

Different features see different things, and a private linear model loses little by rows of more numbers as long as the
vectors are no longer: clip and noise know their length alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sordino.features.colour_scattering import colour_scattering
from sordino.features.drawn_prior import drawn_prior
from sordino.features.oriented_gradients import oriented_gradients
from sordino.features.scattering import scattering
from sordino.features.silhouettes import silhouettes

Features = Callable[[Tensor], Tensor]  # pictures [n, ...] -> rows or maps [n, ...]
FEATURES: dict[str, Features] = {
    "scattering": scattering,
    "silhouettes": silhouettes,
    "oriented-gradients": oriented_gradients,
    "colour-scattering": colour_scattering,
    "drawn-prior": drawn_prior,
}


def features_of(name: str | None) -> Features | None:
    """Return the features of a name, or of several names joined by `+`; None for no features."""
    if name in (None, "none"):
        return None
    parts = [FEATURES[part] for part in str(name).split("+")]
    return parts[0] if len(parts) == 1 else joined(parts)


def joined(parts: list[Features]) -> Features:
    """Return features whose rows [n, dim] are those of all parts, divided by the root of their number."""

    def rows(x: Tensor) -> Tensor:
        each: Tensor = torch.cat([part(x).flatten(1) for part in parts], 1) / len(parts) ** 0.5
        return each

    return rows
