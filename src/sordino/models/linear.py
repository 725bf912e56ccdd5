"""Linear model, initialised to zero: convex, small, and hard to beat at a small epsilon on good features."""

from torch import nn

__all__ = ["linear"]


def linear(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the model.

    Args:
        shape: shape of one record, without the batch dimension; records are flattened.
        outputs: number of classes or predicted values.
    """
    width = 1
    for n in shape:
        width *= n
    layer = nn.Linear(width, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer) if len(shape) > 1 else layer
