"""Linear model, initialised to zero: convex, small, and hard to beat at a small epsilon on good features."""

from torch import nn

__all__ = ["linear"]


def linear(shape: tuple[int, ...], outputs: int, bias: bool = True) -> nn.Module:
    """Return the model.

    Args:
        shape: shape of one record, without the batch dimension; records are flattened.
        outputs: number of classes or predicted values.
        bias: whether outputs have a bias; rows with a constant column need none.
    """
    width = 1
    for n in shape:
        width *= n
    layer = nn.Linear(width, outputs, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer) if len(shape) > 1 else layer
