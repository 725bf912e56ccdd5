"""The process in which the daemon of a site runs its owner's copy of a foreign app.

    python -m sordino.foreign.child FOLDER look     which mod comes first
    python -m sordino.foreign.child FOLDER train    reads a frame from standard input and trains

The answer is one frame on the standard output that the process was started with. Whatever the app prints goes to
standard error, which is the site's log. The answer is for the daemon alone: it holds unclipped arrays.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.object_ref import load_app
from flwr.supercore.task_identity import TaskIdentity

from sordino.core.errors import RunError
from sordino.foreign import frames
from sordino.foreign.client import PrivateMod
from sordino.foreign.digest import PROJECT
from sordino.foreign.request import Named, TrainRequest, numbered

NODE = 1  # number of the node and of the task: an app has no use for the real one


def loaded(folder: Path) -> ClientApp:
    """Return the ClientApp of an app."""
    config = tomllib.loads((folder / PROJECT).read_text(encoding="utf-8"))
    app = load_app(config["tool"]["flwr"]["app"]["components"]["clientapp"], RunError, folder)
    if not isinstance(app, ClientApp):
        raise RunError("the clientapp that the app names is no ClientApp.")
    return app


def first_mod(app: ClientApp) -> dict[str, Any]:
    """Return the clip of the app's `private_mod`, and whether it is there and comes first."""
    mods = [isinstance(mod, PrivateMod) for mod in app._mods]
    found = next((mod for mod in app._mods if isinstance(mod, PrivateMod)), None)
    return {"clip": None if found is None else found.clip, "first": mods[:1] == [True]}


def trained(app: ClientApp, request: TrainRequest, node: dict[str, Any]) -> Named:
    """Return the arrays that the app's training function returns; its mods run, but for `private_mod`."""
    for mod in app._mods:
        if isinstance(mod, PrivateMod):
            mod.at_site = True
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = NODE
    arrays = ArrayRecord({name: Array(value) for name, value in request.arrays.items()})
    content = RecordDict({request.records[0]: arrays, request.records[1]: ConfigRecord(request.config)})
    message = Message(content, dst_node_id=NODE, message_type=request.kind)
    message.metadata.__dict__["_message_id"] = "1"  # a reply must have something to reply to
    reply = app(message, Context(NODE, NODE, node, RecordDict(), dict(request.run)))
    (returned,) = reply.content.array_records.values()
    return {name: array.numpy() for name, array in returned.items()}


def main(folder: str, task: str) -> None:
    """Write the answer to the output that this process was started with."""
    answer = os.dup(1)
    os.dup2(2, 1)
    app = loaded(Path(folder))
    if task == "look":
        frame = frames.packed(first_mod(app))
    else:
        header, arrays = frames.unpacked(sys.stdin.buffer.read())
        node = header.pop("node")
        returned = trained(app, TrainRequest.read(header, arrays), node)
        frame = frames.packed({"names": list(returned)}, numbered(returned))
    with os.fdopen(answer, "wb") as out:
        out.write(frame)


if __name__ == "__main__":
    main(*sys.argv[1:])
