"""WRN-16-4 with GroupNorm and weight standardisation (2,748,890 parameters on 3 x 32 x 32 and 10 classes).

Zagoruyko & Komodakis (2016), arXiv:1605.07146, trained privately on CIFAR-10 by De et al. (2022), arXiv:2204.13650:
GroupNorm with 16 groups replaces BatchNorm, and the weights of convolutions are standardised (Qiao et al. 2019,
arXiv:1903.10520) on every call. Their augmentation multiplicity and parameter averaging are part of training, not of
the model.

Gradients are computed by vmap, not by book-keeping: a standardised weight is not the parameter itself, and book-keeping
has no rule for the step between the two."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.models._pictures import check_picture

__all__ = ["wide_resnet"]

GROUPS = 16  # groups of channels
WIDTH = 4  # multiplies 16, 32 and 64 channels
BLOCKS = 2  # blocks per width: depth 6 x 2 + 4 = 16


class StandardConv2d(nn.Conv2d):
    """Convolution with (W - mean) / sqrt(fan-in variance + eps) in place of W, for every output channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the convolution to x [n, channels, height, width]."""
        fan_in = self.weight[0].numel()
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        weight = (self.weight - mean) * torch.rsqrt(variance * fan_in + 1e-4)  # a gain of 1, as in variance scaling
        return F.conv2d(x, weight, None, self.stride, self.padding)


def conv(before: int, channels: int, size: int, stride: int = 1) -> nn.Module:
    """Return a standardised convolution without bias, padded by half the kernel size."""
    return StandardConv2d(before, channels, size, stride, padding=size // 2, bias=False)


class WideBlock(nn.Module):
    """Block x + conv relu norm conv relu norm x; if the shape changes, the shortcut starts after the first relu."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(GROUPS, before), conv(before, channels, 3, stride)
        self.norm2, self.conv2 = nn.GroupNorm(GROUPS, channels), conv(channels, channels, 3)
        self.shortcut = None if before == channels and stride == 1 else conv(before, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to x [n, before, height, width]."""
        y: Tensor = F.relu(self.norm1(x))
        short: Tensor = x if self.shortcut is None else self.shortcut(y)
        y = self.conv2(F.relu(self.norm2(self.conv1(y))))
        return short + y


def wide_resnet(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the network for pictures with sides of 8 to 64 pixels.

    Args:
        shape: (channels, height, width) of one record.
        outputs: number of classes.
    """
    check_picture("wide-resnet", shape, least=8, most=64)
    layers: list[nn.Module] = [conv(shape[0], 16, 3)]
    last = 16
    for channels in (16 * WIDTH, 32 * WIDTH, 64 * WIDTH):
        for i in range(BLOCKS):
            layers.append(WideBlock(last, channels, stride=2 if i == 0 and channels > 16 * WIDTH else 1))
            last = channels
    head = (nn.GroupNorm(GROUPS, last), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, outputs))
    return nn.Sequential(*layers, *head)
