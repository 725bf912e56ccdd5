"""Checks of what the functions of a method return.

The loop and the federation call a method through `Checked`: rows of the wrong shape raise one error that says what was
expected and what was returned. Any other error inside a third-party method is also reported in one line, with the place
in its file. If one of Sordino's own methods fails, the fault is ours and the traceback is shown.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm
from sordino.contract import pricing
from sordino.contract.claim import Claim
from sordino.contract.method import Method, Plan, Release, Site
from sordino.core import plugin
from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.core.message import Message
from sordino.core.record import plain
from sordino.core.types import State
from sordino.core.vector import Layout
from sordino.privacy import price
from sordino.privacy.events import Event
from sordino.runs.job import Job
from sordino.spec import legal
from sordino.spec.spec import Spec


def check_releases(spec: Spec, method: Method, plan: Plan) -> None:
    """Raise SpecError if a third-party method does not declare its releases correctly; called before any charge."""
    if plugin.ours("methods", spec.method):
        return
    ready = replace(plan, noise_multiplier=1.0)
    looks = Checked(method, spec.method, spec.viewer or method.viewer, SpecError)
    try:
        for t in range(plan.rounds):
            looks.releases(ready, t)
        price.cost_to(spec.viewer or method.viewer, pricing.planned(cast(Method, looks), ready))
    except SpecError as error:
        named = str(error).startswith(f"{spec.method}.")
        raise error if named else SpecError(f"{spec.method}.releases: {error}") from error
    claim = asked(spec.method, "claim", method.claim, ready)
    if claim is not None and not isinstance(claim, Claim):
        raise SpecError(f"{spec.method}.claim must return a Claim or None, not {claim!r}.")


def asked(name: str, verb: str, function: Callable[..., Any], *args: Any, error: type[SordinoError] = SpecError) -> Any:
    """Call a function of a plug-in and return its result; turn what it raises into one error with its place.

    Args:
        name: the name of the plug-in.
        verb: the name of the function.
        function: the function.
        *args: its arguments.
        error: the class of the error to raise.
    """
    try:
        return function(*args)
    except (SordinoError, torch.OutOfMemoryError):
        raise
    except Exception as cause:
        where = f" ({place})" if (place := plugin.place(cause)) else ""
        message = " ".join(str(cause).split())
        raise error(f"{name}.{verb} fails{where}: {type(cause).__name__}: {message}") from cause


class Checked:
    """A wrapper of a method that calls its functions and checks what they return.

    All other attributes are passed through. The functions are documented in `Method`.
    """

    def __init__(
        self, method: Method, name: str, viewer: str | None = None, error: type[SordinoError] = RunError
    ) -> None:
        self._method, self._name, self._ours = method, name, plugin.ours("methods", name)
        self._viewer, self._error = viewer or method.viewer, error

    def __reduce__(self) -> tuple[Any, ...]:
        return Checked, (self._method, self._name, self._viewer, self._error)

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._method, verb)
        return attribute if self._ours or not callable(attribute) else partial(self._call, verb, attribute)

    def _call(self, verb: str, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args) if self._ours else asked(self._name, verb, function, *args, error=self._error)

    def remarks(self, plan: Plan) -> Any:
        """Check that `remarks` returns a tuple or list of text."""
        result = self._call("remarks", self._method.remarks, plan)
        if not isinstance(result, tuple | list) or not all(isinstance(line, str) for line in result):
            raise self._wrong("remarks", "a tuple of text", result)
        return result

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> Any:
        """Check that `releases` returns releases with different names, known units and phases, and valid mechanisms."""
        if type(self._method).releases is Method.releases:
            raise self._error(
                f"{self._name} does not declare `releases`. Methods of the earlier contract (costs, release) must be "
                "rewritten: see docs/methods.md."
            )
        result = self._call("releases", self._method.releases, plan, round, state)
        if self._ours:
            return result
        if not isinstance(result, tuple) or not result or not all(isinstance(r, Release) for r in result):
            raise self._wrong("releases", "a tuple of Release", result)
        names = [r.name for r in result]
        if len(set(names)) < len(names):
            listed = ", ".join(map(str, names))
            raise self._error(f"{self._name}.releases must return releases of different names, not {listed}.")
        for release in result:
            if release.unit not in legal.UNITS:
                raise self._error(f"{self._name}.releases: unit {release.unit!r} is not known.")
            if release.phase and release.phase not in self._method.phases:
                raise self._error(f"{self._name}.releases: {release.phase!r} is not a phase of the method.")
            if not all(callable(getattr(release.mechanism, verb, None)) for verb in ("apply", "event")):
                what = f"the mechanism of {release.name} must have `apply` and `event`"
                raise self._error(f"{self._name}.releases: {what}, unlike {shown(release.mechanism)}.")
            event = asked(self._name, "releases", release.mechanism.event, 1, error=self._error)
            if not isinstance(event, Event):
                raise self._error(f"{self._name}.releases: the mechanism of {release.name} must have an Event.")
        return result

    def variables(self, state: State, layout: Layout, plan: Plan) -> Any:
        """Check that `variables` returns None or a frozen dataclass that a checkpoint can hold."""
        result = self._call("variables", self._method.variables, state, layout, plan)
        if result is not None and not _frozen(result):
            what = "a dict" if isinstance(result, dict) else shown(result)
            wanted = "a frozen dataclass of tensors and numbers, or None"
            raise self._error(f"{self._name}.variables must return {wanted}, not {what}.")
        self._fields("variables", result)
        return result

    def keeps(self, state: State, clients: int, plan: Plan) -> Any:
        """Check that `keeps` returns a dict of tensors [clients, ...]."""
        result = self._call("keeps", self._method.keeps, state, clients, plan)
        if not isinstance(result, dict):
            raise self._wrong("keeps", f"a dict of tensors [{clients}, ...]", result)
        for name, value in result.items():
            if not isinstance(name, str):
                raise self._wrong("keeps", "a dict whose keys are text", name)
            if not _rows(value, clients):
                wanted = f"a dict of tensors [{clients}, ...], not a dict with {name!r}: {shown(value)}"
                raise self._error(f"{self._name}.keeps must return {wanted}.")
        return result

    def train(self, state: State, site: Site) -> Any:
        """Check that `train` returns a message with one row per client, and what clients keep in the same shapes."""
        result = self._call("train", self._method.train, state, site)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise self._wrong("train", "two things, a Message and what clients keep", result)
        message, client_state = result
        clients = len(site.data.sizes)
        if not isinstance(message, Message) or not message.fields:
            raise self._wrong("train", "a Message with one field at least, first", message)
        for name, value in message.fields.items():
            if not _rows(value, clients):
                raise self._wrong("train", f"rows [{clients}, ...] as the field {name}", value)
        if message.weight is not None and not (_rows(message.weight, clients) and message.weight.ndim == 1):
            raise self._wrong("train", f"weights [{clients}]", message.weight)
        if not self._ours and message.weight is not None and not _weights(message.weight):
            raise self._error(f"{self._name}.train must return weights that are finite and not negative.")
        plain = type(site.plan.algorithm).message is Algorithm.message and type(self._method).merge is Method.merge
        plain = plain and site.phase == self._method.phases[-1]  # messages of earlier phases go to `between`
        if plain and (message.fields.get("update") is None or message["update"].shape[1:] != state.params.shape):
            raise self._wrong("train", f"a field update [{clients}, {len(state.params)}]", message.fields.get("update"))
        shapes = {name: (value.shape, value.dtype) for name, value in site.own.items()}
        good = isinstance(client_state, dict) and all(isinstance(value, Tensor) for value in client_state.values())
        if not good or {name: (value.shape, value.dtype) for name, value in client_state.items()} != shapes:
            raise self._wrong("train", "what clients keep as it came, by site.kept(...), second", client_state)
        return result

    def between(self, phase: str, state: State, seen: Message, plan: Plan) -> Any:
        """Check that `between` returns a state of the same shapes and types."""
        result = self._call("between", self._method.between, phase, state, seen, plan)
        return self._state("between", result, state)

    def merge(self, state: State, seen: Message, plan: Plan) -> Any:
        """Check that `merge` returns a state of the same shapes and types."""
        return self._state("merge", self._call("merge", self._method.merge, state, seen, plan), state)

    def over(self, state: State, plan: Plan) -> Any:
        """Check that `over` returns a bool."""
        result = self._call("over", self._method.over, state, plan)
        if not isinstance(result, bool):
            raise self._wrong("over", "True or False", result)
        return result

    def noise(self, state: State, plan: Plan) -> Any:
        """Check that `noise` returns a number or None."""
        result = self._call("noise", self._method.noise, state, plan)
        if result is not None and (isinstance(result, bool) or not isinstance(result, int | float)):
            raise self._wrong("noise", "a number or None", result)
        return result

    def decided(self, state: State, plan: Plan) -> Any:
        """Check that `decided` returns None or a dict that JSON can hold."""
        result = self._call("decided", self._method.decided, state, plan)
        try:
            if result is not None and not isinstance(result, dict):
                raise TypeError
            json.dumps(plain(result))
        except (TypeError, ValueError):
            raise self._wrong("decided", "a dict of plain numbers and text, or None", result) from None
        if not isinstance(each := (result or {}).get("clients"), dict | None):
            raise self._wrong("decided", "as `clients` a dict by client", each)
        return result

    def explain(self, rounds: list[dict[str, Any]]) -> Any:
        """Check that `explain` returns a list of text."""
        result = self._call("explain", self._method.explain, rounds)
        if not isinstance(result, list) or not all(isinstance(line, str) for line in result):
            raise self._wrong("explain", "a list of text", result)
        return result

    def _state(self, verb: str, after: Any, before: State) -> State:
        if not isinstance(after, State) or not isinstance(after.params, Tensor):
            raise self._wrong(verb, "a State", after)
        if after.params.shape != before.params.shape:
            raise self._wrong(verb, f"a State with params {list(before.params.shape)}", after.params)
        if after.params.dtype != before.params.dtype:
            kinds = f"a State with params of {before.params.dtype}, as they were, not of {after.params.dtype}"
            raise self._error(f"{self._name}.{verb} must return {kinds}.")
        for part in ("method", "algorithm"):
            if type(getattr(after, part)) is not type(getattr(before, part)):
                wanted = f"a State whose {part} is a {type(getattr(before, part)).__name__}, as it was"
                raise self._wrong(verb, wanted, getattr(after, part))
            self._fields(verb, getattr(after, part), getattr(before, part))
        return after

    def _fields(self, verb: str, variables: Any, before: Any = None) -> None:
        """Raise an error if variables could not be written to a checkpoint and read back unchanged."""
        for field in dataclasses.fields(variables) if variables is not None else ():
            value = getattr(variables, field.name)
            old = None if before is None else getattr(before, field.name)
            if value is not None and not isinstance(value, Tensor | int | float):
                raise self._wrong(verb, f"a tensor, a number or None as the field {field.name}", value)
            if value is not None and old is not None and isinstance(value, Tensor) != isinstance(old, Tensor):
                kind = "tensor" if isinstance(old, Tensor) else "number"
                raise self._wrong(verb, f"a {kind} or None as the field {field.name}, as it was", value)

    def _wrong(self, verb: str, wanted: str, value: Any, more: str = "") -> SordinoError:
        return self._error(f"{self._name}.{verb} must return {wanted}, not {shown(value)}{more}.")


def wrapped(method: Method, name: str) -> Method:
    """Return a method whose results are checked."""
    return cast(Method, Checked(method, name))


def checked(job: Job) -> Method:
    """Return the method of a job, with its results checked."""
    return cast(Method, Checked(job.method, job.spec.method, job.viewer))


def _rows(value: Any, clients: int) -> bool:
    """Return whether a value is a dense tensor with one row per client."""
    return isinstance(value, Tensor) and value.layout is torch.strided and value.ndim > 0 and len(value) == clients


def _weights(value: Tensor) -> bool:
    return not value.is_complex() and bool((torch.isfinite(value) & (value >= 0)).all())


def _frozen(value: Any) -> bool:
    """Return whether a value is an instance of a frozen dataclass."""
    return bool(getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False))


def shown(value: Any) -> str:
    """Return a short description of a value for an error message."""
    if isinstance(value, Tensor):
        kind = "" if value.is_floating_point() else f" of {value.dtype}"
        kind += "" if value.layout is torch.strided else f" ({value.layout}, which is not dense)"
        return f"{list(value.shape)}{kind}"
    if isinstance(value, dict) and not value:
        return "an empty dict"
    if isinstance(value, dict):
        odd = [k for k, v in value.items() if not isinstance(v, int | float | str | bool | list | tuple | dict | None)]
        return f"a dict with {odd[0]!r}: {shown(value[odd[0]])}" if odd else "a dict that JSON cannot hold"
    if isinstance(value, tuple | list) and not value:
        return f"an empty {type(value).__name__}"
    if isinstance(value, tuple | list):
        return f"{len(value)} things: {', '.join(map(shown, value[:4]))}"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"
