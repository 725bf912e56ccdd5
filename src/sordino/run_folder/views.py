"""Recorded views: what each viewer saw in every round, in the private part of a run folder.

    private/views/000003-server-train.safetensors    one file per view: round, viewer, phase
    private/views/000003-server+2-train.safetensors  if the viewer of the run is the server with two colluding clients
    private/views/000003-public.safetensors

What other viewers saw follows from these: a client gets the broadcasts, and whoever listens on the wire of one client
gets the broadcasts and that client's messages.

Tensors keep their dtypes. `state.*` is the state as in a checkpoint, `message.*` are the fields of the message that
arrived; `ids`, `weight` and `cohort` are included if the viewer saw them. A round that is repeated overwrites its
files.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.core.saved import PARTS, written
from sordino.core.types import State
from sordino.core.variables import NONE
from sordino.core.view import View
from sordino.privacy import trust
from sordino.run_folder.folder import RunFolder, pack, unpack

VIEWS = "views"
WIRE = re.compile(r"wire:(\d{1,9})")
Observe = Callable[[View], None]  # called with every view of a run, which only the owner may see


class ViewRecorder:
    """An observer that writes every view to the private part of a run folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._round, self._place = folder, 0, 0
        (folder.private / VIEWS).mkdir(exist_ok=True)

    def __call__(self, view: View) -> None:
        self._place = self._place + 1 if view.round == self._round else 0
        self._round = view.round
        tensors = {f"state.{name}": value for name, value in written(view.state).items()}
        head: dict[str, Any] = {
            "viewer": view.viewer,
            "round": view.round,
            "phase": view.phase,
            "place": self._place,
            "done": view.state.round,
            "plain": {part: _plain(getattr(view.state, part)) for part in PARTS},
        }
        if view.cohort is not None:
            tensors["cohort"] = torch.tensor(view.cohort, dtype=torch.int64)
        if view.seen is not None:
            tensors |= _message(view.seen)
            head |= {"heavy": view.seen.heavy, "summed": view.seen.summed, "released": sorted(view.seen.released)}
        held = {
            name: value.detach().clone() for name, value in tensors.items()
        }  # safetensors refuses tensors that share memory
        self._folder.write(f"{VIEWS}/{_name(view)}", pack(held, {"head": json.dumps(head)}))


def shown(observe: Sequence[Observe], view: View) -> None:
    """Call every observer with a copy of a view; only the recorder, which changes nothing, gets the original."""
    for look in observe:
        look(view if isinstance(look, ViewRecorder) else view.copied())


def read_views(folder: str | Path, viewer: str = "server") -> list[View]:
    """Return what a viewer saw of a run with recorded views, ordered by round and phase.

    The variables of methods and algorithms are returned as plain dataclasses with the same fields.

    Args:
        folder: the run folder; the run must have been started with `record_views = true`.
        viewer: "public", "client", "server", "server+N" if that is the viewer of the run, or "wire:K" for an
            eavesdropper on the link of client K.
    """
    if viewer == "client":
        return [View("client", v.round, v.phase, v.state) for v in read_views(folder, "server")]
    if (wire := WIRE.fullmatch(viewer)) is not None:
        return [_on_the_wire(v, int(wire[1])) for v in read_views(folder, "server") if int(wire[1]) in (v.cohort or ())]
    viewer = str(trust.viewer(viewer))  # refuses anything but a viewer's name, such as a pattern
    place = RunFolder(Path(folder)).private / VIEWS
    if not place.is_dir():
        raise RunError(f"{folder} holds no views: the run must be started with record_views = true.")
    views = []
    for path in sorted(place.glob(f"*-{viewer}*.safetensors")):
        try:
            tensors, metadata = unpack(path)
            head = json.loads(metadata["head"])
            if head["viewer"] == viewer:
                views.append((head["round"], head["place"], _view(head, tensors)))
        except (RunError, KeyError, ValueError) as error:
            raise RunError(f"{path} is not a valid view of a run: {error}.") from error
    if not views:
        others = f", and those of {viewer} if the run has viewer = {viewer}" if "+" in viewer else ""
        raise RunError(f"{folder} holds no views of the {viewer}: those of server and public are recorded{others}.")
    return [view for _, _, view in sorted(views, key=lambda entry: entry[:2])]


def _on_the_wire(view: View, client: int) -> View:
    """Return what crosses the link of one client: the broadcast and, where it is not masked or sealed, its message."""
    seen = view.seen
    if seen is None or seen.summed or seen.ids is None:
        return replace(view, viewer=f"wire:{client}", cohort=(client,), seen=None)
    return replace(
        view, viewer=f"wire:{client}", cohort=(client,), seen=seen.pick(torch.from_numpy(seen.ids == client))
    )


def _name(view: View) -> str:
    return "-".join(filter(None, (f"{view.round:06d}", view.viewer, view.phase))) + ".safetensors"


def _plain(variables: Any) -> dict[str, str] | None:
    """Return the types of the fields that are not tensors, by name; None if there are no variables."""
    if variables is None:
        return None
    values = {f.name: getattr(variables, f.name) for f in dataclasses.fields(variables)}
    return {name: type(value).__name__ for name, value in values.items() if not isinstance(value, Tensor)}


def _message(seen: Message) -> dict[str, Tensor]:
    beside = {
        "weight": seen.weight,
        "ids": None if seen.ids is None else torch.from_numpy(seen.ids),
    }
    fields = {f"message.{name}": value for name, value in seen.fields.items()}
    return fields | {name: value for name, value in beside.items() if value is not None}


def _view(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> View:
    state = State(
        tensors["state.params"],
        head["done"],
        average=tensors.get("state.average"),
        **{part: _variables(part, head["plain"][part], tensors) for part in PARTS},
    )
    cohort = tensors.get("cohort")
    seen = None
    if "summed" in head:
        fields = {k.removeprefix("message."): v for k, v in tensors.items() if k.startswith("message.")}
        ids = tensors.get("ids")
        senders = None if ids is None else ids.numpy()
        released = frozenset(head["released"])
        seen = Message(fields, tensors.get("weight"), senders, head["heavy"], head["summed"], released)
    who = None if cohort is None else tuple(cohort.tolist())
    return View(head["viewer"], head["round"], head["phase"], state, who, seen)


def _variables(part: str, plain: Mapping[str, str] | None, tensors: Mapping[str, Tensor]) -> Any:
    if plain is None:
        return None
    prefix = f"state.{part}."
    values: dict[str, Any] = {
        k.removeprefix(prefix).removesuffix(NONE): v for k, v in tensors.items() if k.startswith(prefix)
    }
    for name, kind in plain.items():
        values[name] = None if kind == "NoneType" else values[name].item()
    made = dataclasses.make_dataclass("Variables", [(name, Any) for name in values], frozen=True)
    return made(**values)
