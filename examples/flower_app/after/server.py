"""The server of a minimal Flower app: federated averaging."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sordino.flower import Private

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for 20 rounds."""
    initial = ArrayRecord({"weights": Array(np.zeros(3, dtype=np.float32))})
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = Private(strategy, epsilon=8.0, delta=1e-5, clients=100, clip=1.0, rounds=20, client_rate=0.5)
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=20)
    print(result.arrays["weights"].numpy())
