"""MNIST: LeCun, Cortes and Burges (1998), "The MNIST database of handwritten digits".

It is part of the package. The idx files of the usual public sources can be read too, from a folder `mnist`.
"""

from sordino.data.sets._mnist_like import layouts
from sordino.data.sets.base import DatasetSource

__all__ = ["SOURCE"]

CONTENT = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"

SOURCE = DatasetSource(
    name="mnist",
    task="classification",
    records=(60_000, 10_000),
    clients=None,
    licence="commonly stated as CC BY-SA 3.0",
    origin="It is part of this package: install it again.",
    layouts=layouts("mnist", CONTENT, tuple("0123456789"), 0.1307, 0.3081, None),
)
