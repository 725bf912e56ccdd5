"""A Flower mod that lets nothing out of a client but its clipped update.

Every message starts a process that imports this file, so it imports numpy and flwr, and no torch. Texts that leave are
fixed: Flower would send the text of an exception, which may hold private values, to the server.

At a site under a policy this process has no data. There the mod hands the message to the daemon of the site, which
trains with its owner's copy of the app, or refuses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.foreign import digest, site_line, update
from sordino.foreign.request import Named, TrainRequest
from sordino.foreign.terms import ONLY_CLIENTS, RunTerms

SAYS = "sordino: "  # in front of every text that leaves
NOT_PRIVATE = SAYS + "evaluation and queries are not part of the privacy budget, so they are not answered"
FAILED = SAYS + "the client could not train; its own log may say why"
TERMS = SAYS + "the clip announced by the server is not the clip of this client's private_mod"
FORM = SAYS + update.FORM
UNREACHABLE = SAYS + "the daemon of this site could not be asked, or its answer was no update"

Next = Callable[[Message, Context], Message]


@dataclass
class PrivateMod:
    """The mod that `private_mod` makes; by this class a site recognises it among the mods of an app."""

    clip: float
    unit: str
    folder: Path | None  # of the app
    at_site: bool = False  # whether this process was started by the daemon of a site, which clips by itself

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Return the clipped update as the only record of a reply, or an error with a fixed text."""
        if message.metadata.message_type.split(".")[0] != "train":
            return _error(message, NOT_PRIVATE)
        if self.at_site:
            return call_next(message, context)
        try:
            terms, received = _asked(message)
        except Exception:
            return _error(message, TERMS)
        if terms.clip != self.clip or terms.unit != self.unit:
            return _error(message, TERMS)
        if "socket" in context.node_config:
            return self._from_site(message, context, received)
        return self._trained(message, context, received, call_next)

    def _trained(self, message: Message, context: Context, received: Named, call_next: Next) -> Message:
        """Run the app's function here."""
        try:
            reply = call_next(message, context)
            returned = None if reply.has_error() else [dict(r) for r in reply.content.array_records.values()]
        except (Exception, SystemExit):  # its text must not leave the client
            return _error(message, FAILED)
        if returned is None:
            return _error(message, FAILED)
        try:
            (arrays,) = returned
            named = {name: array.numpy() for name, array in arrays.items()}
            return _reply(message, update.let_out(named, received, self.clip))
        except Exception:
            return _error(message, FORM)

    def _from_site(self, message: Message, context: Context, received: Named) -> Message:
        """Let the daemon of the site decide, and train; the app's function is not called here."""
        try:
            ((arrays, _),) = message.content.array_records.items()
            ((name, config),) = message.content.config_records.items()
            app = "" if self.folder is None else digest.of_installed(self.folder)
            run, kind = dict(context.run_config), message.metadata.message_type
            request = TrainRequest(app, kind, (arrays, name), dict(config), run, received)
            seconds = float(context.node_config.get("timeout", site_line.PATIENCE))
            return _reply(message, site_line.trained(request, str(context.node_config["socket"]), seconds))
        except site_line.SiteRefusal as error:
            return _error(message, f"{SAYS}{error}")
        except Exception:
            return _error(message, UNREACHABLE)


def private_mod(clip: float, unit: str = "client") -> Callable[..., Message]:
    """Return a Flower mod that lets only the clipped update of a training function leave the client.

    The update is what the function returned minus what it received, over all arrays together, scaled down to an L2
    norm of at most `clip`. Updates that are not finite count as zero. Metrics, numbers of examples, configs and the
    text of errors are dropped; evaluation and queries are answered by an error with a fixed text. The mod must be the
    first in the list of mods, which is the outermost.

    On a node whose config names the socket of `sordino site`, the training function is not called in Flower's process.
    The daemon behind the socket trains with the copy of the app that the site's owner has reviewed, if the site's
    policy lists the app and pays for the run. On other nodes no policy and no ledger protect the client: there the
    guarantee rests on the server, and on the app that uses this mod.

    Args:
        clip: Largest L2 norm of the update; it must be the clip of the server's `Private`.
        unit: "client". Records cannot be protected here: see the error for the reason.
    """
    check.positive(clip=clip)
    require_client(unit)
    return PrivateMod(float(clip), unit, digest.around(sys._getframe(1).f_code.co_filename))


def require_client(unit: str) -> None:
    """Raise SpecError for any unit but a client."""
    if unit != "client":
        raise SpecError(
            f"unit = {unit} was asked for, but {ONLY_CLIENTS}. Use unit = client, or train with `sordino deploy`, "
            "which clips the gradient of every record."
        )


def _asked(message: Message) -> tuple[RunTerms, Named]:
    """Return the terms and the arrays of a training message, before the app's code can change them."""
    (arrays,) = message.content.array_records.values()
    (config,) = message.content.config_records.values()
    return RunTerms.read(config), {name: array.numpy() for name, array in arrays.items()}


def _reply(message: Message, arrays: dict[str, NDArray[np.float32]]) -> Message:
    record: Any = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    return Message(RecordDict({"update": record}), reply_to=message)


def _error(message: Message, text: str) -> Message:
    return Message(Error(code=0, reason=text), reply_to=message)
