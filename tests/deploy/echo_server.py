"""A stand-in for the server's side of the app: sends one message to every node and writes the answers down."""

import json
import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    content = bytes(range(256)) * 40_000  # 10 MB: several pieces, with every byte
    array = Array(dtype="uint8", shape=(len(content),), stype="sordino.bytes", data=content)
    end, nodes = time.monotonic() + 30, []
    while len(nodes) < 2 and time.monotonic() < end:
        nodes = sorted(grid.get_node_ids())
    body = RecordDict({"sordino": ArrayRecord({"bytes": array})})
    waiting = set(grid.push_messages([Message(body, dst_node_id=n, message_type="train", ttl=60) for n in nodes]))
    waiting |= set(grid.push_messages([Message(body, dst_node_id=nodes[0], message_type="query", ttl=60)]))
    answers, errors = [], []
    while waiting and time.monotonic() < end:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            if reply.has_error():
                errors.append(reply.error.reason)
            else:
                answers.append(reply.content["sordino"]["bytes"].data == b"echo " + content)
        time.sleep(0.1)
    out = Path(str(context.run_config["out"])) / "answers.json"
    out.write_text(json.dumps({"nodes": len(nodes), "answers": answers, "errors": errors}))
