"""Fashion-MNIST: Xiao, Rasul and Vollgraf (2017), arXiv:1708.07747.

Read from the four idx files of its official site or from fashion_mnist.npz. Instead of a checksum of the files, the
pixels and labels are verified after reading.
"""

from sordino.data.sets._mnist_like import layouts
from sordino.data.sets.base import DatasetSource

__all__ = ["SOURCE"]

SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
CONTENT = "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f"
NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

SOURCE = DatasetSource(
    name="fashion-mnist",
    task="classification",
    records=(60_000, 10_000),
    clients=None,
    licence="MIT",
    origin=f"They are at {SITE} and at github.com/zalandoresearch/fashion-mnist.",
    layouts=layouts("fashion-mnist", CONTENT, NAMES, 0.2860, 0.3530, SITE),
)
