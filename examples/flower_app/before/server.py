"""The server of a minimal Flower app: federated averaging."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for 20 rounds."""
    initial = ArrayRecord({"weights": Array(np.zeros(3, dtype=np.float32))})
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=20)
    print(result.arrays["weights"].numpy())
