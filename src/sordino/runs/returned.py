"""What a method returned, looked at before it is used.

The loop calls a method, and hands it to the engine, as `Checked`: rows of the wrong shape are one error that says what
was expected and what came. Whatever else goes wrong inside a method that someone brought is told in one line too, with
the place in its file; where one of ours fails, the fault is ours and its trace is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from sordino.algorithms.base import Algorithm
from sordino.core import plugin
from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.core.record import plain
from sordino.core.rng import RowStream, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods.base import Method, Plan
from sordino.privacy import price, trust
from sordino.privacy.claims import Claim
from sordino.privacy.events import Cost, Event
from sordino.runs import legal
from sordino.runs.job import Job
from sordino.runs.spec import Spec


def check_costs(spec: Spec, method: Method, plan: Plan) -> None:
    """A method that someone brought must say what it costs, in words we know, before anything is spent."""
    if plugin.ours("methods", spec.method):
        return
    ready = replace(plan, noise_multiplier=1.0)
    viewer = spec.viewer or method.viewer
    for t in range(plan.rounds):
        check_words(spec.method, "costs", asked(spec.method, "costs", method.costs, ready, t), viewer)
    if (whole := asked(spec.method, "whole", method.whole, ready)) is not None:
        check_words(spec.method, "whole", whole, viewer)
    step = asked(spec.method, "step_noise", method.step_noise, ready)
    if isinstance(step, bool) or not isinstance(step, int | float):
        raise SpecError(f"{spec.method}.step_noise must return a number, not {step!r}.")
    claim = asked(spec.method, "claim", method.claim, ready)
    if claim is not None and not isinstance(claim, Claim):
        raise SpecError(f"{spec.method}.claim must return a Claim or None, not {claim!r}.")


def asked(name: str, verb: str, function: Callable[..., Any], *args: Any, error: type[SordinoError] = SpecError) -> Any:
    """What a plug-in's function answers; whatever it raises is one error with its place."""
    try:
        return function(*args)
    except (SordinoError, torch.OutOfMemoryError):
        raise
    except Exception as found:
        where = f" ({place})" if (place := plugin.place(found)) else ""
        told = " ".join(str(found).split())
        raise error(f"{name}.{verb} fails{where}: {type(found).__name__}: {told}") from found


def check_words(name: str, verb: str, costs: Any, viewer: str) -> None:
    """Costs must be made of events, in words we know, and say what this viewer is charged."""
    if not isinstance(costs, tuple) or not costs or not all(isinstance(c, Cost) for c in costs):
        raise SpecError(f"{name}.{verb} must return a tuple of Cost, not {costs!r}.")
    for cost in costs:
        if cost.unit not in legal.UNITS or cost.relation not in ("add/remove", "replace"):
            raise SpecError(f"{name}.{verb}: unit {cost.unit!r}, relation {cost.relation!r} are not known.")
        if not _is_event(cost.event):
            raise SpecError(f"{name}.{verb}: the event of a Cost must be an Event, not {cost.event!r}.")
        if cost.draw not in ("unit", "inside", "changed"):
            raise SpecError(f"{name}.{verb}: draw must be unit, inside or changed, not {cost.draw!r}.")
        if isinstance(cost.copies, bool) or not isinstance(cost.copies, int) or cost.copies < 1:
            raise SpecError(f"{name}.{verb}: copies must be a whole number of at least 1, not {cost.copies!r}.")
    try:
        for cost in costs:
            trust.viewer(cost.viewer)
        price.cost_to(viewer, costs)
    except SpecError as error:
        raise SpecError(f"{name}.{verb}: {error}") from error


def _is_event(found: Any) -> bool:
    """An event, of events only where it combines others."""
    inner = (found.event,) if hasattr(found, "event") else getattr(found, "events", ())
    return isinstance(found, Event) and isinstance(inner, tuple) and all(map(_is_event, inner))


class Checked:
    """A method; its verbs are checked, all else is as it was."""

    def __init__(self, method: Method, name: str, viewer: str | None = None) -> None:
        self._method, self._name, self._ours = method, name, plugin.ours("methods", name)
        self._viewer = viewer or method.viewer  # who pays by `now_costs`

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._method, verb)
        return found if self._ours or not callable(found) else partial(self._call, verb, found)

    def _call(self, verb: str, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args) if self._ours else asked(self._name, verb, function, *args, error=RunError)

    def remarks(self, plan: Plan) -> Any:
        found = self._call("remarks", self._method.remarks, plan)
        if not isinstance(found, tuple | list) or not all(isinstance(line, str) for line in found):
            raise self._wrong("remarks", "a tuple of text", found)
        return found

    def begin(self, state: State, layout: Layout, plan: Plan) -> Any:
        return self._state("begin", self._call("begin", self._method.begin, state, layout, plan), state)

    def fresh(self, state: State, clients: int, plan: Plan) -> Any:
        found = self._call("fresh", self._method.fresh, state, clients, plan)
        self._rows("fresh", found, clients, None)
        return found

    def train(self, state: State, data: Batch, own: Rows, model: Model, plan: Plan, rng: RowStream) -> Any:
        found = self._call("train", self._method.train, state, data, own, model, plan, rng)
        kept = list(own.shape)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise self._wrong("train", f"two things, rows [{len(data.sizes)}, ...] and own {kept}", found)
        self._rows("train", found[0], len(data.sizes), None)
        if not isinstance(found[1], Tensor) or list(found[1].shape) != kept:
            raise self._wrong("train", f"what clients keep, own {kept}, second", found[1])
        return found

    def release(self, rows: Rows, sizes: tuple[int, ...], state: State, plan: Plan, rng: RowStream) -> Any:
        found = self._call("release", self._method.release, rows, sizes, state, plan, rng)
        plain = type(plan.algorithm).message is Algorithm.message and type(self._method).merge is Method.merge
        self._rows("release", found, len(sizes), len(state.params) if plain else None, rows)
        return found

    def merge(self, state: State, rows: Rows, plan: Plan, rng: Stream) -> Any:
        return self._state("merge", self._call("merge", self._method.merge, state, rows, plan, rng), state)

    def now_costs(self, state: State, plan: Plan) -> Any:
        found = self._call("now_costs", self._method.now_costs, state, plan)
        if not isinstance(found, tuple) or not found or not all(isinstance(cost, Cost) for cost in found):
            raise self._wrong("now_costs", "a tuple of Cost", found)
        if self._ours:
            return found
        try:
            check_words(self._name, "now_costs", found, self._viewer)
        except SpecError as error:
            raise RunError(str(error)) from error
        return found

    def over(self, state: State, plan: Plan) -> Any:
        found = self._call("over", self._method.over, state, plan)
        if not isinstance(found, bool):
            raise self._wrong("over", "True or False", found)
        return found

    def noise(self, state: State, plan: Plan) -> Any:
        found = self._call("noise", self._method.noise, state, plan)
        if found is not None and (isinstance(found, bool) or not isinstance(found, int | float)):
            raise self._wrong("noise", "a number or None", found)
        return found

    def decided(self, state: State, plan: Plan) -> Any:
        found = self._call("decided", self._method.decided, state, plan)
        try:
            if found is not None and not isinstance(found, dict):
                raise TypeError
            json.dumps(plain(found))
        except (TypeError, ValueError):
            raise self._wrong("decided", "a dict of plain numbers and text, or None", found) from None
        if not isinstance(each := (found or {}).get("clients"), dict | None):
            raise self._wrong("decided", "as `clients` a dict by client", each)
        return found

    def explain(self, rounds: list[dict[str, Any]]) -> Any:
        found = self._call("explain", self._method.explain, rounds)
        if not isinstance(found, list) or not all(isinstance(line, str) for line in found):
            raise self._wrong("explain", "a list of text", found)
        return found

    def _state(self, verb: str, found: Any, before: State) -> State:
        if not isinstance(found, State) or not isinstance(found.params, Tensor):
            raise self._wrong(verb, "a State", found)
        if found.params.shape != before.params.shape:
            raise self._wrong(verb, f"a State with params {list(before.params.shape)}", found.params)
        if not isinstance(found.extra, dict) or not all(isinstance(v, Tensor) for v in found.extra.values()):
            raise self._wrong(verb, "a State whose extra is a dict of tensors", found.extra)
        return found

    def _rows(self, verb: str, found: Any, clients: int, width: int | None, given: Rows | None = None) -> None:
        wanted = [clients, "..." if width is None else width]
        good = isinstance(found, Tensor) and found.ndim == 2 and found.is_floating_point()
        if not good or len(found) != clients or width not in (None, found.shape[1]):
            from_train = "" if given is None else f" (it was given {list(given.shape)} by train)"
            raise self._wrong(verb, f"rows [{', '.join(map(str, wanted))}]", found, from_train)

    def _wrong(self, verb: str, wanted: str, found: Any, more: str = "") -> RunError:
        return RunError(f"{self._name}.{verb} must return {wanted}, not {_shown(found)}{more}.")


def checked(job: Job) -> Method:
    return cast(Method, Checked(job.method, job.spec.method, job.viewer))


def _shown(found: Any) -> str:
    if isinstance(found, Tensor):
        kind = "" if found.is_floating_point() else f" of {found.dtype}"
        return f"{list(found.shape)}{kind}"
    if isinstance(found, dict):
        odd = [k for k, v in found.items() if not isinstance(v, int | float | str | bool | list | tuple | dict | None)]
        return f"a dict with {odd[0]!r}: {_shown(found[odd[0]])}" if odd else "a dict that JSON cannot hold"
    if isinstance(found, tuple | list):
        return f"{len(found)} things: {', '.join(map(_shown, found[:4]))}"
    return "nothing (None)" if found is None else f"a {type(found).__name__}"


def rehearse(job: Job) -> None:
    """A round of a method that someone brought, on made-up records, thrown away: before there is a folder or a charge.

    Of the clients' records it uses the shape alone."""
    if plugin.ours("methods", job.spec.method):
        return
    method, plan, device = checked(job), job.plan, job.engine.device
    clients = range(min(4, plan.population))
    one = job.clients.fetch([0], torch.device("cpu"))
    size = min(plan.smallest_client, len(one.y))
    many = size * len(clients)
    groups = None if one.groups is None else ((1,) * size,) * len(clients)
    batch = Batch(
        one.x.new_zeros(many, *one.x.shape[1:]).to(device),
        one.y.new_zeros(many, *one.y.shape[1:]).to(device),
        (size,) * len(clients),
        groups,
        None if one.tags is None else one.tags.new_zeros(many).to(device),
    )
    rng = Stream.research(0).at("rehearsal")
    state = method.begin(State(job.model.layout.read(job.model.module)), job.model.layout, plan)
    method.now_costs(state, plan)
    row, own = rng.rows(list(clients)), method.fresh(state, len(clients), plan)
    rows, _ = method.train(state, batch, own, job.model, plan, row.at("train"))
    rows = method.release(rows, batch.sizes, state, plan, row.at("release"))
    after = method.merge(state, job.channel.carry(rows, rng.at("channel")), plan, rng.at("merge"))
    method.noise(state, plan), method.decided(after, plan), method.over(after, plan)
