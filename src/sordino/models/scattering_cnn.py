"""CNN of two convolutions on maps of fixed features (193,610 parameters on 267 x 8 x 8, 10 classes).

Tramer & Boneh (2021), arXiv:2011.11660: on scattering maps of colour pictures a small network is more accurate than a
linear model. Ours has two convolutions of 64 channels, each followed by GroupNorm, tanh (Papernot et al. 2021,
arXiv:2007.14191) and max pooling, and a linear layer that is initialised to zero."""

from torch import nn

from sordino.models._pictures import check_picture

__all__ = ["scattering_cnn"]

WIDTH, GROUPS = 64, 8


def scattering_cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the CNN for maps of at least 4 x 4.

    Args:
        shape: (channels, height, width) of one record's maps.
        outputs: number of classes.
    """
    check_picture("scattering-cnn", shape, least=4)
    layers: list[nn.Module] = []
    last = shape[0]
    for _ in range(2):
        layers += [nn.Conv2d(last, WIDTH, 3, padding=1), nn.GroupNorm(GROUPS, WIDTH), nn.Tanh(), nn.MaxPool2d(2)]
        last = WIDTH
    head = nn.Linear(WIDTH * (shape[1] // 4) * (shape[2] // 4), outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(*layers, nn.Flatten(), head)
