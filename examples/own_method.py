"""Write a private method of your own, and let Sordino price, rehearse and run it.

    python examples/own_method.py

A method is one file in a folder that SORDINO_PLUGINS names. This script writes such a file and uses it.
"""

import os
import tempfile
from pathlib import Path

import torch
from torch import nn

METHOD = '''
"""Every client sends the sign of its clipped update's coordinates only after Gaussian noise was added to it."""
from dataclasses import dataclass
from typing import ClassVar

from sordino.mechanisms import Gaussian
from sordino.methods import Message, Method, Release, local_sgd

__all__ = ["NoisySigns"]


@dataclass(frozen=True)
class NoisySigns(Method):
    clip: float = 0.2  # bound on the L2 norm of a client's update
    step: float = 0.2  # length of every coordinate that is sent

    units: ClassVar[tuple[str, ...]] = ("client",)
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg",)

    def releases(self, plan, round=0, state=None):
        return (Release("update", Gaussian(plan.z), "client", bound=self.clip),)

    def train(self, state, site):
        update, mine = local_sgd(state, site)
        noisy = site.out["update"](update)  # the outlet clips and adds the noise that is priced
        return Message({"update": self.step * noisy.sign()}), site.kept(mine)
'''

with tempfile.TemporaryDirectory() as folder:
    plugins = Path(folder) / "plugins"
    (plugins / "methods").mkdir(parents=True)
    (plugins / "methods" / "noisy_signs.py").write_text(METHOD)
    os.environ["SORDINO_PLUGINS"] = str(plugins)

    import sordino

    def client(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make up the records of one client."""
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(50, 3, generator=draw)
        return x, (x[:, 0] > 0).long()

    result = sordino.train(
        nn.Linear(3, 2), [client(k) for k in range(200)], method="noisy-signs", epsilon=8.0, delta=1e-5, rounds=10,
        learning_rate=1.0, test=client(999), seed=0, out=folder,
    )  # fmt: skip
    print(result.guarantee.sentence())
    print(f"accuracy {result.accuracy:.3f}")
