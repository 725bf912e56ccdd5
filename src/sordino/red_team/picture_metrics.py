"""How close reconstructed pictures are to the originals: MSE, MAE, PSNR, SSIM, matching and identification rate.

SSIM is that of Wang et al. (2004), "Image quality assessment: from error visibility to structural similarity", IEEE
TIP 13(4), Eq. (13): a Gaussian window of 11 x 11 with standard deviation 1.5, K1 = 0.01, K2 = 0.03, population moments,
windows inside the picture only, mean over windows and channels. It equals `structural_similarity` of scikit-image with
gaussian_weights=True, sigma=1.5 and use_sample_covariance=False.

Pictures are [n, channels, height, width]; results are one number for each of the n pairs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from sordino.core.errors import SpecError

WINDOW, SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03
ROWS = 256  # reconstructions whose distances to a gallery are computed at once


def mse(made: Tensor, true: Tensor) -> Tensor:
    """Return the mean squared error of each picture [n]."""
    return (made - true).flatten(1).square().mean(dim=1)


def mae(made: Tensor, true: Tensor) -> Tensor:
    """Return the mean absolute error of each picture [n]."""
    return (made - true).flatten(1).abs().mean(dim=1)


def psnr(made: Tensor, true: Tensor, data_range: float = 1.0) -> Tensor:
    """Return the peak signal-to-noise ratio of each picture [n] in dB; infinite for equal pictures."""
    return 10 * torch.log10(data_range**2 / mse(made, true))


def ssim(made: Tensor, true: Tensor, data_range: float = 1.0) -> Tensor:
    """Return the structural similarity of each picture [n], from -1 to 1."""
    if made.shape != true.shape or made.ndim != 4:
        raise SpecError(
            f"ssim compares pictures [n, channels, height, width], not {tuple(made.shape)} with {tuple(true.shape)}."
        )
    if min(made.shape[2:]) < WINDOW:
        raise SpecError(f"ssim needs pictures of at least {WINDOW} x {WINDOW} pixels, not {tuple(made.shape[2:])}.")
    x, y = made.double(), true.double()
    c1, c2 = (K1 * data_range) ** 2, (K2 * data_range) ** 2
    mean_x, mean_y = _smooth(x), _smooth(y)
    var_x = _smooth(x * x) - mean_x**2
    var_y = _smooth(y * y) - mean_y**2
    both = _smooth(x * y) - mean_x * mean_y
    score = (2 * mean_x * mean_y + c1) * (2 * both + c2) / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
    return score.flatten(1).mean(dim=1)


def matched(made: Tensor, true: Tensor) -> Tensor:
    """Return, for each original, the reconstruction that is assigned to it [n], with the least total squared error.

    A gradient does not say in which order the records of a batch stood, so a batch is compared after this matching.
    """
    if len(made) != len(true):
        raise SpecError(f"{len(made)} reconstructions cannot be matched one to one with {len(true)} originals.")
    _, columns = linear_sum_assignment(distances(true, made).cpu().numpy())
    return torch.as_tensor(columns, device=made.device)


def distances(made: Tensor, gallery: Tensor) -> Tensor:
    """Return the mean squared error of every reconstruction to every picture of a gallery [n, gallery]."""
    others = gallery.flatten(1).double()
    parts = [torch.cdist(part, others) for part in made.flatten(1).double().split(ROWS)]
    return torch.cat(parts).square() / others.shape[1]


def identification_rate(made: Tensor, gallery: Tensor, truth: Tensor) -> float:
    """Return the share of reconstructions whose nearest picture of a gallery is the true one.

    Args:
        made: reconstructions [n, ...].
        gallery: pictures among which the attacker looks [m, ...]; guessing is right once in m times.
        truth: place of each reconstruction's original in the gallery [n].
    """
    nearest = distances(made, gallery).argmin(dim=1)
    return float((nearest == truth.to(nearest.device)).double().mean())


def _smooth(x: Tensor) -> Tensor:
    """Return the Gaussian-weighted mean of every window inside the pictures."""
    at = torch.arange(WINDOW, dtype=x.dtype, device=x.device) - WINDOW // 2
    line = torch.exp(-(at**2) / (2 * SIGMA**2))
    line = line / line.sum()
    n, channels, height, width = x.shape
    flat = x.reshape(n * channels, 1, height, width)
    flat = F.conv2d(F.conv2d(flat, line.view(1, 1, -1, 1)), line.view(1, 1, 1, -1))
    return flat.view(n, channels, *flat.shape[2:])
