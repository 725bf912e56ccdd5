"""A Flower mod that lets nothing out of a client but its clipped update.

Every message starts a process that imports this file, so it imports numpy and flwr, and no torch. Texts that leave are
fixed: Flower would send the text of an exception, which may hold private values, to the server.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.foreign.terms import RunTerms

NOT_PRIVATE = "sordino: evaluation and queries are not part of the privacy budget, so they are not answered"
FAILED = "sordino: the client could not train; its own log may say why"
TERMS = "sordino: the clip announced by the server is not the clip of this client's private_mod"
FORM = "sordino: an update must hold the floating point arrays that were received, with their names and shapes"
REFUSED = (
    "sordino: this site is under the policy of `sordino site`, which takes no apps with training code of their own"
)
INSIDE = 1 - 1e-6  # updates are scaled to slightly less than the clip, so that rounding cannot lift them above it

Arrays = dict[str, NDArray[np.float64]]
Next = Callable[[Message, Context], Message]


def private_mod(clip: float, unit: str = "client") -> Callable[..., Message]:
    """Return a Flower mod that lets only the clipped update of a training function leave the client.

    The update is what the function returned minus what it received, over all arrays together, scaled down to an L2
    norm of at most `clip`. Updates that are not finite count as zero. Metrics, numbers of examples, configs and the
    text of errors are dropped; evaluation and queries are answered by an error with a fixed text. The mod must be the
    first in the list of mods, which is the outermost.

    No policy and no ledger of the site protect it here: the guarantee rests on the server, and on the app that uses
    this mod. A node whose config names the socket of `sordino site` is under such a policy, so it answers nothing.

    Args:
        clip: Largest L2 norm of the update; it must be the clip of the server's `Private`.
        unit: "client". Records cannot be protected here: see the error for the reason.
    """
    check.positive(clip=clip)
    require_client(unit)

    def sordino_private(message: Message, context: Context, call_next: Next) -> Message:
        if "socket" in context.node_config:
            return _error(message, REFUSED)
        if message.metadata.message_type.split(".")[0] != "train":
            return _error(message, NOT_PRIVATE)
        try:
            terms, received = _asked(message)
        except Exception:
            return _error(message, TERMS)
        if terms.clip != clip or terms.unit != unit:
            return _error(message, TERMS)
        try:
            reply = call_next(message, context)
            returned = None if reply.has_error() else [dict(r) for r in reply.content.array_records.values()]
        except (Exception, SystemExit):  # its text must not leave the client
            return _error(message, FAILED)
        if returned is None:
            return _error(message, FAILED)
        try:
            update = clipped(difference(returned, received), clip)
        except Exception:
            return _error(message, FORM)
        arrays = {name: Array(np.asarray(value, dtype=np.float32)) for name, value in update.items()}
        return Message(RecordDict({"update": ArrayRecord(arrays)}), reply_to=message)

    return sordino_private


def require_client(unit: str) -> None:
    """Raise SpecError for any unit but a client."""
    if unit != "client":
        raise SpecError(
            f"unit = {unit} was asked for, but a foreign app's training code can be protected by whole clients only: "
            "nobody can bound what one record does to code that Sordino does not run. Use unit = client, or train "
            "with `sordino deploy`, which clips the gradient of every record."
        )


def difference(returned: list[dict[str, Array]], received: dict[str, Array]) -> Arrays:
    """Return what training changed, in float64; raise SpecError unless exactly the received arrays came back."""
    if len(returned) != 1 or set(returned[0]) != set(received):
        raise SpecError(FORM)
    out: Arrays = {}
    for name, before in received.items():
        old, new = before.numpy(), returned[0][name].numpy()
        if old.dtype.kind != "f" or new.dtype.kind != "f" or old.shape != new.shape:
            raise SpecError(FORM)
        with np.errstate(all="ignore"):
            out[name] = np.asarray(new.astype(np.float64) - old.astype(np.float64))
    return out


def clipped(update: Arrays, clip: float) -> Arrays:
    """Return the update, scaled down to an L2 norm of at most `clip`; zero if it is zero or not finite."""
    flat = np.concatenate([value.reshape(-1) for value in update.values()]) if update else np.zeros(0)
    largest = float(np.abs(flat).max()) if flat.size else 0.0
    if not np.isfinite(flat).all() or largest < np.finfo(np.float64).tiny:
        return {name: np.zeros(value.shape) for name, value in update.items()}
    shape = {name: np.asarray(value / largest) for name, value in update.items()}  # no square of it overflows
    norm = float(np.linalg.norm(flat / largest))
    if norm * largest <= clip * INSIDE:
        return update
    return {name: np.asarray(value * (clip * INSIDE / norm)) for name, value in shape.items()}


def _asked(message: Message) -> tuple[RunTerms, dict[str, Array]]:
    """Return the terms and the arrays of a training message, before the app's code can change them."""
    (arrays,) = message.content.array_records.values()
    (config,) = message.content.config_records.values()
    return RunTerms.read(config), dict(arrays)


def _error(message: Message, text: str) -> Message:
    return Message(Error(code=0, reason=text), reply_to=message)
