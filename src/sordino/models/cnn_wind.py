"""Small network that predicts wind power from weather, as a share of the installed capacity.

Targets are in [0, 1], like those of GEFCom2014 (Hong et al. 2016, "Probabilistic energy forecasting", International
Journal of Forecasting 32), and the last layer is a sigmoid. Records (channels, time) go through two convolutions over
time (2,721 parameters for 4 channels and 24 hours), flat records through two hidden layers of 32 units (1,249
parameters for 4 features). Activations are tanh, because bounded activations keep gradients small: Papernot et al.
(2021), arXiv:2007.14191."""

import torch
from torch import nn

from sordino.core.errors import ModelError

__all__ = ["cnn_wind"]


def cnn_wind(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the network.

    Args:
        shape: (features,), or (channels, time) with at least 8 time steps, of one record.
        outputs: number of predicted values.
    """
    if len(shape) == 1:
        body = nn.Sequential(nn.Linear(shape[0], 32), nn.Tanh())
    elif len(shape) == 2 and shape[1] >= 8:
        body = nn.Sequential(
            nn.Conv1d(shape[0], 16, 5, padding=2), nn.Tanh(), nn.AvgPool1d(2),
            nn.Conv1d(16, 16, 3, padding=1), nn.Tanh(), nn.AvgPool1d(4), nn.Flatten(),
        )  # fmt: skip
    else:
        raise ModelError(f"cnn-wind needs records (features,) or (channels, time of 8 or more), not {shape}. Try mlp.")
    width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, outputs), nn.Sigmoid())
