"""The shim of a site, which answers an empty request by fixed bytes and hands every other one to the daemon."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from . import client

EMPTY = b"empty"

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Answer without the daemon if nothing is asked; otherwise do what the shim does."""
    if client.request(msg) != EMPTY:
        return client.train(msg, context)
    array = Array(dtype="uint8", shape=(len(EMPTY),), stype="sordino.bytes", data=EMPTY)
    return Message(RecordDict({"sordino": ArrayRecord({"bytes": array})}), reply_to=msg)
