"""Methods of someone else's in tests: known by name as if they had come in a folder of plug-ins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from sordino.contract.method import Method
from sordino.core import plugin


def bring(monkeypatch: pytest.MonkeyPatch, name: str, found: type[Method]) -> dict[str, Any]:
    """Make a class the method of that name, which is not one of ours; the class may be exchanged in the result."""
    load, ours, available = plugin.load, plugin.ours, plugin.available
    classes: dict[str, Any] = {name: found}
    monkeypatch.setattr(plugin, "load", lambda kind, asked: classes.get(asked) or load(kind, asked))
    monkeypatch.setattr(plugin, "ours", lambda kind, asked: asked not in classes and ours(kind, asked))
    monkeypatch.setattr(
        plugin, "available", lambda kind: [*available(kind), *classes] if kind == "methods" else available(kind)
    )
    return classes


def with_verbs(base: type[Method], **verbs: Any) -> type[Method]:
    """Return a class as `base`, with these verbs."""
    return dataclass(frozen=True)(type(base.__name__, (base,), verbs))
