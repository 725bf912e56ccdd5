"""Train your own model on your own arrays, and read the guarantee.

python examples/own_model.py
"""

import tempfile

import torch
from torch import nn

import sordino


def client(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make up the records of one client: 20 features and a label that two of them decide."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 20, generator=draw)
    return x, (x[:, 0] + x[:, 1] > 0).long()


model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 2))
with tempfile.TemporaryDirectory() as folder:
    result = sordino.train(
        model,
        [client(k) for k in range(20)],
        method=sordino.methods.DpSgd(clip=1.0),  # or method="dp-sgd", clip=1.0
        epsilon=3.0,
        delta=1e-5,
        rounds=15,
        local_steps=2,
        batch_rate=0.2,
        learning_rate=0.5,
        test=client(1000),  # taken as public, and the guarantee says so
        seed=0,  # an experiment that repeats; leave it out on real data
        out=folder,
    )
    print(result.guarantee.sentence())
    print(f"accuracy {result.accuracy:.3f}, run folder {result.folder.name}")
    again = sordino.load(result.folder, nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 2)))
    print(f"read back: epsilon {again.guarantee.epsilon:.3f} after {len(again.history)} rounds")
