"""Keep one budget for everything that is ever computed from the same people's data.

python examples/ledger.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import sordino

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "registry.sqlite"
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(50, 4, generator=draw), torch.randint(0, 2, (50,), generator=draw)) for _ in range(10)]
    for attempt in range(2):
        result = sordino.train(
            nn.Linear(4, 2), clients, method="dp-sgd", epsilon=1.0, delta=1e-6, rounds=3, ledger=str(path),
            data_name="ward 7", out=folder, name=f"run-{attempt}",
        )  # fmt: skip
        print(result.together)
    with sordino.Ledger(path, mode="read") as ledger:
        for job in ledger.jobs():
            print(job)
