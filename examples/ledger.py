"""Keep one budget for everything that is ever computed from the same people's data.

python examples/ledger.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import sordino
from sordino.ledger.ledger import Budget

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "registry.sqlite"
    with sordino.Ledger(path) as ledger:  # at most epsilon 2 for all runs on the same data together
        ledger.set_budget(Budget(epsilon=2.0, delta=1e-5, theory="gdp", view=None))
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(50, 4, generator=draw), torch.randint(0, 2, (50,), generator=draw)) for _ in range(10)]
    for number in range(5):
        try:
            result = sordino.train(
                nn.Linear(4, 2), clients, method="dp-sgd", epsilon=1.0, delta=1e-6, rounds=3, ledger=str(path),
                data_name="ward-7", out=folder, name=f"run-{number}",
            )  # fmt: skip
        except sordino.SordinoError as error:
            print(f"run {number} was refused: {error}")
            break
        print(f"run {number} cost epsilon {result.guarantee.epsilon:.3f}. {result.together}")
    with sordino.Ledger(path, mode="read") as ledger:
        print(f"charges on record: {len(ledger.charges('ward-7'))}; left: {ledger.left('ward-7')}")
