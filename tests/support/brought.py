"""Methods of someone else's in tests: known by name as if they had come in a folder of plug-ins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sordino.contract import local_sgd
from sordino.contract.method import Method, Plan, Release, Site
from sordino.core import plugin
from sordino.core.message import Message
from sordino.core.types import State
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.runs import build
from support.problems import job


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


def put_method(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> str:
    """Write a method into a folder of plug-ins below this one, and let it be found; return its name."""
    methods = folder / "plugins" / "methods"
    methods.mkdir(parents=True)
    (methods / f"{name}.py").write_text(text)
    monkeypatch.setenv(plugin.VARIABLE, str(folder / "plugins"))
    return name


@dataclass(frozen=True)
class Odd(Method):
    """Sound as it stands; the tests spoil one verb of it."""

    units: ClassVar[tuple[str, ...]] = ("client",)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        return (Release("update", Gaussian(plan.z), "client", 1.0),)

    def train(self, state: State, site: Site) -> Any:
        update, mine = local_sgd.sgd(state, site)
        return Message({"update": site.out["update"](update)}), site.kept(mine)


def odd_jobs(monkeypatch: pytest.MonkeyPatch, base: type[Method] = Odd) -> Any:
    """Return `odd`: odd(verb=function) is a job whose method has these verbs; odd.classes is what `bring` returns."""
    classes = bring(monkeypatch, "odd", base)

    def odd(**verbs: Any) -> build.Job:
        classes["odd"] = with_verbs(base, **verbs)
        return job(method="odd")

    odd.classes = classes  # type: ignore[attr-defined]
    return odd


def with_verbs(base: type[Method], **verbs: Any) -> type[Method]:
    """Return a class as `base`, with these verbs."""
    return dataclass(frozen=True)(type(base.__name__, (base,), verbs))
