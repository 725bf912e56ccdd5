"""Conversion of events to JSON and back."""

from __future__ import annotations

from typing import Any

from sordino.core import plugin
from sordino.core.errors import SpecError
from sordino.privacy.events import Event


def to_json(event: Event) -> dict[str, Any]:
    """Return an event as a dictionary that JSON can hold."""
    out: dict[str, Any] = {"kind": event.written_as}
    for name, value in vars(event).items():
        if isinstance(value, Event):
            out[name] = to_json(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Event):
            out[name] = [to_json(v) for v in value]
        else:
            out[name] = list(value) if isinstance(value, tuple) else value
    return out


def from_json(data: Any) -> Event:
    """Return the event that `to_json` saved; raise one clear error for anything else."""
    if not isinstance(data, dict):
        raise SpecError(f"a privacy event is an object with a kind, not {data!r}.")
    fields = {k: v for k, v in data.items() if k != "kind"}
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = from_json(value)
        elif isinstance(value, list):
            fields[name] = tuple(from_json(v) if isinstance(v, dict) else v for v in value)
    name = data.get("kind", "")
    if name not in Event._kinds:  # leaves are defined in the modules of the mechanisms
        plugin.import_all("privacy.mechanisms", "privacy.shuffle")
    kind = Event._kinds.get(name)
    if kind is None:
        raise SpecError(f"unknown privacy event {name!r}.")
    try:
        return kind(**fields)
    except TypeError as error:
        raise SpecError(f"a privacy event {name} cannot be made of {', '.join(fields) or 'nothing'}.") from error
