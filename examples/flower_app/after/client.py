"""The clients of a minimal Flower app: each fits a line to data of its own."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sordino.flower import private_mod

app = ClientApp(mods=[private_mod(clip=1.0)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take one gradient step and return the weights."""
    weights = message.content["arrays"]["weights"].numpy()
    data = np.random.default_rng(int(context.node_config["partition-id"]))
    x = data.normal(size=(50, len(weights)))
    y = x @ np.arange(1.0, 1 + len(weights))
    new = weights - 0.5 * x.T @ (x @ weights - y) / len(y)
    metrics = MetricRecord({"num-examples": len(y), "loss": float(np.mean((x @ new - y) ** 2))})
    arrays = ArrayRecord([new.astype(np.float32)])
    arrays["weights"] = arrays.pop("0")
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
