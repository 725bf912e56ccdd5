"""ResNet-18 with GroupNorm for small pictures (11,173,962 parameters on 3 x 32 x 32 and 10 classes).

He et al. (2016), arXiv:1512.03385, Table 1 (two basic blocks at each of 64, 128, 256 and 512 channels), which Feng et
al. (2025, UDP-FL) and Li et al. (2025, arXiv:2503.12958, FedSDP) train on CIFAR-10. Differences from the paper: the
first convolution is 3 x 3 with stride 1 and there is no max pooling, as is usual for pictures of 32 pixels, and
GroupNorm (Wu & He 2018, arXiv:1803.08494) replaces BatchNorm, which mixes the records of a batch."""

import torch.nn.functional as F
from torch import Tensor, nn

from sordino.models._pictures import check_picture

__all__ = ["resnet18"]

GROUPS = 32  # groups of channels: Wu & He (2018)
CHANNELS = (64, 128, 256, 512)  # channels of two blocks each


class ResidualBlock(nn.Module):
    """Block relu(norm conv relu norm conv x + shortcut x); the shortcut is a 1 x 1 convolution if the shape changes."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        same = stride == 1 and before == channels
        self.shortcut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(before, channels, 1, stride, bias=False), nn.GroupNorm(GROUPS, channels)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to x [n, before, height, width]."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet18(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the network for pictures with sides of 8 to 64 pixels.

    Args:
        shape: (channels, height, width) of one record.
        outputs: number of classes.
    """
    check_picture("resnet18", shape, least=8, most=64)
    first = last = CHANNELS[0]
    layers: list[nn.Module] = [nn.Conv2d(shape[0], first, 3, padding=1, bias=False), nn.GroupNorm(GROUPS, first)]
    layers.append(nn.ReLU())
    for channels in CHANNELS:
        layers += [
            ResidualBlock(last, channels, stride=1 if channels == first else 2),
            ResidualBlock(channels, channels, stride=1),
        ]
        last = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, outputs))
