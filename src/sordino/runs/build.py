"""Build a Job, which is everything a run needs, from a Spec; all checks are made before anything is charged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.contract import pricing
from sordino.contract.augment import augment
from sordino.contract.method import Method, Plan, Public, started
from sordino.core.errors import DataError, ModelError, SpecError
from sordino.core.rng import Ints, Stream
from sordino.core.state import Snapshot
from sordino.core.types import Batch, Clients, Model, SampleLoss, State
from sordino.core.vector import Layout
from sordino.data.clients import ArrayClients, LazyClients, adopt, check_labels, checked, pair_of
from sordino.data.records import format_of, format_of_arrays
from sordino.federations import blocks, capacity
from sordino.federations.base import Federation, Work
from sordino.federations.capacity import Room
from sordino.federations.facts import Facts
from sordino.federations.ray_workers import RayActors
from sordino.federations.simulator import ClientPart, Simulator
from sordino.federations.workers import Workers
from sordino.gradients.engine import CohortGradients
from sordino.measures import held_out, row_moments
from sordino.measures import settings as evaluation
from sordino.measures.held_out import HeldOut
from sordino.measures.row_moments import RowNoise
from sordino.measures.settings import Evaluation
from sordino.privacy import price
from sordino.privacy.events import Event
from sordino.runs import (
    assumptions,
    defaults,
    early,
    exactness,
    initial_weights,
    left_out,
    noise,
    public_facts,
    returned,
    statistics,
)
from sordino.runs.fingerprint import digests
from sordino.runs.initial_weights import InitialWeights
from sordino.runs.job import Job, Owner
from sordino.runs.own_code import NOTHING, Own
from sordino.runs.planning import plan_of
from sordino.runs.prepare import Kept, Prepared, dataset_path, device_of, outputs_of, prepare, takes_long
from sordino.spec import legal
from sordino.spec.mode import settled
from sordino.spec.spec import Spec
from sordino.tasks import losses
from sordino.tasks.outputs import tensor_valued
from sordino.tasks.task import MULTI_LABEL, check_multi_label, task_of
from sordino.tasks.validate import fix, validate


def from_spec(spec: Spec, keep: Kept | None = None) -> Job:
    """Return a job on a named dataset and model; `keep` caches data and features for further runs of the process.

    Keys and paths are checked before data are loaded. If features are to be computed, which may take long, the job is
    first built from the features of a few records: whatever is wrong with shapes, labels or the budget shows there."""
    early.check_spec(spec)
    shared: Kept = {} if keep is None else keep
    if takes_long(spec, shared):
        from_prepared(prepare(spec, sketch=True, keep=shared), "cpu").federation.close()
    return from_prepared(prepare(spec, keep=shared))


def from_prepared(prepared: Prepared, device: str | None = None) -> Job:
    """Return a job on prepared data; if no record is public, some are held out for evaluation."""
    job = build(
        prepared.spec if device is None else replace(prepared.spec, device=device),
        prepared.module,
        prepared.clients,
        None,
        prepared.test,
        prepared.test_clients,
        prepared.data.notes,
        prepared.brought,
        assumptions.of_data(prepared.data, prepared.spec),
        own_file=True,
        own=Own(task=MULTI_LABEL if prepared.data.task == MULTI_LABEL else None),
    )
    job = replace(job, owner=replace(job.owner, notes=prepared.owner_notes))
    if prepared.planted is not None:
        job = replace(job, planted=prepared.planted, notes=(*job.notes, prepared.planted.note()))
    job = replace(job, form=format_of(prepared.data, prepared.sample, outputs_of(prepared.data)))
    if prepared.data.public:
        return replace(job, public_data=True, owner=replace(job.owner, benchmark=dataset_path(prepared.spec)))
    rows = prepared.data.private_rows()
    dealt = not str(prepared.spec.partition).startswith("natural")  # the ids of dealt clients mean nothing
    rows = replace(rows, clients=None) if dealt else rows
    return replace(job, public_data=False, owner=replace(job.owner, raw=rows))


def build(
    spec: Spec,
    module: nn.Module | Callable[[], nn.Module],
    clients: Any,
    loss: str | SampleLoss | None = None,
    test: tuple[Any, Any] | None = None,
    test_clients: Any = None,
    notes: Sequence[str] = (),
    brought: Clients | None = None,
    public: Sequence[str] | None = None,
    own_file: bool = False,
    own: Own = NOTHING,
) -> Job:
    """Return a job on the caller's own module (or a function that makes one) and own clients.

    `public` lists, in words, the test records and facts of the data that are taken as public. `own_file` says that the
    records come from a file: if none of them is public, some are held out to evaluate on. `own` holds the caller's own
    task, metric and optimiser. A mode that is still open is decided as for private data."""
    spec = settled(spec, public=False)
    legal.require(spec.method, spec.algorithm, spec.unit)
    held = adopt(clients)
    device = device_of("cpu" if spec.in_workers else spec.device)
    module, fixed, initial = _copied(spec, module)
    method: Method = spec.method_object()
    _check_server_data(spec, method)
    adopted, everyone = held, public_facts.of_clients(held)
    held, shown = held_out.public(spec, held)
    _check_tags(spec, method, held)
    first = held.fetch([0], torch.device("cpu"))
    task, sample_loss = _aimed(spec, own, loss, first.y)
    pair, owners, words = _tested(test, test_clients, held.count, first, public)
    module, held = _fit(spec, module, held, first.x, sample_loss, pair, task)
    model, record = _tried_model(spec, module.to(device), sample_loss, first, device)
    wanted = evaluation.asked(spec, method, held, pair is not None, own_file)
    wanted = own.measured(wanted, spec, task, model, record, pair)
    division = _divided(spec, method, held, wanted, model.layout, first.x[0].numel())
    owners = _renumbered(owners, held.count, division.left)
    plan = _with_server_data(own.stepping(spec, method, division.plan), model, shown, device)
    plan = _calibrated(spec, method, plan, division, model, torch.zeros_like(record.x))
    method, plan, chosen = defaults.tuned(spec, method, plan, model, first.x[0].numel(), task == "regression")
    plan, budgets, caps, more = noise.personal_budgets(spec, method, plan, division.viewer, division.charged)
    held, rng, federation = _opened(spec, device, division, Work(method, model, plan))
    return Job(
        spec=spec,
        method=method,
        plan=plan,
        model=model,
        owner=Owner(brought or adopted, digests=digests(held)),
        test=None if pair is None else (pair[0].to(device), pair[1].to(device)),
        task=task,
        own_metric=own.metric,
        test_clients=owners,
        held_out=None if division.kept_out is None else division.kept_out.facts,
        federation=federation,
        device=device,
        rng=rng,
        viewer=division.viewer,
        notes=(*notes, *_server_notes(shown), *fixed, *chosen, *more, *_notes(spec, method, plan, division, everyone)),
        once=division.once,
        apart=division.apart,
        budgets=budgets,
        caps=caps,
        evaluation=division.evaluation,
        rows=division.rows,
        public=(*assumptions.of_run(spec, method, shown, division.evaluation, initial), *words),
        initial=initial,
        form=format_of_arrays(first.x, task),
    )


def _copied(
    spec: Spec, module: nn.Module | Callable[[], nn.Module]
) -> tuple[nn.Module, list[str], InitialWeights | None]:
    """Return a copy of the caller's module, what is to be said of it, and the file of its weights.

    Unfit layers are replaced and weights are loaded where the spec asks for it."""
    if not isinstance(module, nn.Module) and not callable(module):
        name = f" {module!r}" if isinstance(module, str) else ""
        raise ModelError(
            f"model must be an nn.Module, or a function that makes one, not {type(module).__name__}{name}."
        )
    try:
        made = module if isinstance(module, nn.Module) else module()
    except TypeError as error:
        raise ModelError(
            f"model must be an nn.Module, or a function without arguments that makes one: {error}."
        ) from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"the function that makes the model returns {type(made).__name__}, not an nn.Module.")
    copied = copy.deepcopy(made).cpu()
    copied, notes = fix(copied) if spec.fix_model else (copied, [])
    initial = initial_weights.loaded(spec, copied)
    return copied, notes if initial is None else [*notes, *initial.notes(spec)], initial


def _check_server_data(spec: Spec, method: Method) -> None:
    unit = spec.unit or method.units[0]
    if spec.server_data and method.private and unit != "record":
        raise SpecError(
            f"server_data gives the server single records of everyone in the clear, so no {unit} is protected from it: "
            "use it with unit = record."
        )


def _check_tags(spec: Spec, method: Method, held: Clients) -> None:
    if method.tagged and (not isinstance(held, ArrayClients) or held.tags is None):
        raise DataError(
            f"{spec.method} must know which records carry private attributes: set private_data, such as label:3,8."
        )
    if isinstance(held, ArrayClients) and held.tags is not None:
        method.check_groups(int(held.tags.max()))


def _tested(
    test: tuple[Any, Any] | None, test_clients: Any, clients: int, first: Batch, public: Sequence[str] | None
) -> tuple[tuple[Tensor, Tensor] | None, Ints | None, tuple[str, ...]]:
    """Return the public test records, the client of each, and what is taken as public of the data, in words."""
    pair = None if test is None else checked("the test data", *pair_of("the test data", test))
    _check_alike(first, pair)
    words = () if pair is None else (f"the {len(pair[1]):,} test records",)
    return pair, _test_owners(test_clients, pair, clients), words if public is None else tuple(public)


def _check_alike(first: Batch, pair: tuple[Tensor, Tensor] | None) -> None:
    """Raise DataError unless test records have the shape of the clients' records."""
    for name, ours, other in () if pair is None else (("x", first.x, pair[0]), ("y", first.y, pair[1])):
        if ours.shape[1:] != other.shape[1:] or ours.is_floating_point() != other.is_floating_point():
            raise DataError(
                f"the test data: a record's {name} has shape {list(other.shape[1:])} ({other.dtype}), but the clients' "
                f"have {list(ours.shape[1:])} ({ours.dtype})."
            )


def _fit(
    spec: Spec,
    module: nn.Module,
    held: ArrayClients | LazyClients,
    x: Tensor,
    loss: SampleLoss,
    pair: tuple[Tensor, Tensor] | None,
    task: str,
) -> tuple[nn.Module, ArrayClients | LazyClients]:
    """Return a module that is fit for private training, and clients whose labels it can predict."""
    module = _standardised(spec, tensor_valued(module, _sample(x)), held, x)
    validate(module, _sample(x))
    if task == MULTI_LABEL:
        _check_labels(module, held, x, pair)
    if isinstance(loss, losses.WeightedCrossEntropy):
        loss.check_outputs(_outputs(module, x)[-1])
    if loss in (losses.squared_error, losses.absolute_error, losses.huber):
        _check_values(module, x, held.fetch([0], torch.device("cpu")).y)
    plain = loss is losses.cross_entropy or isinstance(loss, losses.WeightedCrossEntropy)
    return module, _check_classes(module, held, x, pair) if plain else held


def _standardised(spec: Spec, module: nn.Module, held: Clients, x: Tensor) -> nn.Module:
    """Return the module with features standardised in front of it, where the spec asks for it."""
    statistics.require_rows(spec, module)
    if not spec.standardise:
        return module
    if not isinstance(held, ArrayClients):
        raise SpecError("standardise needs clients whose records are in memory.")
    return statistics.standardised(module, x)


def _tried_model(
    spec: Spec, module: nn.Module, loss: SampleLoss, first: Batch, device: torch.device
) -> tuple[Model, Batch]:
    """Return the model, tried on one record, and that record; refuse augmentation of what is no picture."""
    record = Batch(first.x[:1].to(device), first.y[:1].to(device), (1,))
    augment(record, spec.augment, spec.views, Stream.research(0).rows([0]))
    return settled_model(module, loss, record, _model_keys(spec)), record


def _calibrated(spec: Spec, method: Method, plan: Plan, division: _Division, model: Model, sample: Tensor) -> Plan:
    """Return the plan with what exact noise may count on, and with the noise that the budget asks for."""
    plan = replace(plan, exact=exactness.of_run(spec, method, plan, model, sample))
    if not method.private:
        return plan
    level = noise.calibrated(method, plan, division.viewer, spec, division.once, division.apart)
    return replace(plan, noise_multiplier=level)


def _aimed(spec: Spec, own: Own, loss: str | SampleLoss | None, targets: Tensor) -> tuple[str, SampleLoss]:
    """Return the task of the run and its loss; of the targets only the type and the shape matter."""
    task = task_of(own.task, loss, targets)
    return task, losses.loss_for(loss, task, spec.weights_of_classes())


def _server_notes(shown: Batch | None) -> tuple[str, ...]:
    return () if shown is None else (f"{len(shown.y)} records are held by the server and count as public",)


def _with_server_data(plan: Plan, model: Model, shown: Batch | None, device: torch.device) -> Plan:
    """Return the plan with the records that the server holds, if there are any, which are public."""
    if shown is None:
        return plan
    on = Batch(shown.x.to(device), shown.y.to(device), shown.sizes)
    return replace(plan, public=Public(model, on), server_data=True)


def _opened(
    spec: Spec, device: torch.device, division: _Division, work: Work
) -> tuple[ArrayClients | LazyClients, Stream, Federation]:
    """Return the clients on their device, the stream of the run, and the federation that holds the clients.

    The method is started once before, so that what it begins with is checked."""
    layout, first = work.model.layout, State(work.model.layout.read(work.model.module))
    started(returned.wrapped(work.method, spec.method), first, layout, work.plan)
    held = division.held
    if isinstance(held, ArrayClients) and device.type != "cpu":
        held = held.to(device)
    rng = Stream.research(spec.seed or 0) if spec.mode == "research" else Stream.operating_system()
    parts = {} if division.kept_out is None else {held_out.HELD_OUT: division.kept_out.part()}
    federation = _federation(spec, device, held, rng, division.known, parts, work)
    federation.open(work)
    return held, rng, federation


@dataclass(frozen=True)
class _Division:
    """Which records are trained on, which are held out to evaluate on, and the plan that follows."""

    held: ArrayClients | LazyClients
    kept_out: HeldOut | None
    left: Ints  # clients that still have records to train on
    known: Facts
    plan: Plan
    viewer: str
    evaluation: Evaluation
    rows: RowNoise | None
    once: tuple[Event, ...]
    apart: tuple[Event, ...]

    @property
    def charged(self) -> bool:
        """Whether anything is released outside the rounds."""
        return bool(self.once or self.apart)


def _divided(
    spec: Spec, method: Method, clients: Clients, wanted: Evaluation, layout: Layout, features: int
) -> _Division:
    """Hold out records for evaluation, unless the result would be too noisy to be of use."""
    held, kept_out, left = held_out.split(spec, method, clients, wanted)
    known = public_facts.of_clients(held)
    plan, viewer = plan_of(spec, method, known, layout)
    rows = row_moments.planned(spec, method, plan, features)
    final_evaluation, once, apart = held_out.releases(spec, method, plan, wanted, kept_out, features, rows)
    if wanted.held_out and not final_evaluation.held_out:
        held, kept_out, left = held_out.split(spec, method, clients, final_evaluation)
        known = public_facts.of_clients(held)
        plan, viewer = plan_of(spec, method, known, layout)
    return _Division(held, kept_out, left, known, plan, viewer, final_evaluation, rows, once, apart)


def _renumbered(owners: Ints | None, clients: int, left: Ints) -> Ints | None:
    """Return the clients of the test records by the numbers of those who are left; -1 where one is gone."""
    if owners is None or len(left) >= clients:
        return owners
    place = np.full(clients, -1, dtype=np.int64)
    place[left] = np.arange(len(left))
    return np.where(owners >= 0, place[owners], -1)


def _notes(spec: Spec, method: Method, plan: Plan, division: _Division, everyone: Facts) -> Iterator[str]:
    """Yield what whoever starts the run should know."""
    yield from _remarks(spec, method, plan, division.kept_out, division.evaluation)
    yield from _large_delta(method, plan, division.viewer, everyone)
    if spec.workers > (number := _blocks(spec, division.held.count)):
        yield (
            f"workers = {spec.workers}, but the clients are in {number} blocks, each computed by one worker at a time, "
            f"so {number} start. Raise blocks for more, which affects the last digits"
        )


def _remarks(spec: Spec, method: Method, plan: Plan, held: HeldOut | None, shown: Evaluation) -> Iterator[str]:
    yield from left_out.rules(spec)
    if plan.algorithm.note:
        yield plan.algorithm.note
    yield from returned.Checked(method, spec.method).remarks(plan)
    yield from plan.robust.remarks(method.private)
    if pricing.correlated(method, plan) and spec.mode == "secure":
        yield f"in secure mode the noise of {spec.method} is lost with its process: an interrupted run must start anew"
    if spec.private_data is not None and not method.tagged:
        yield f"{spec.method} does not distinguish records with private attributes from others"
    if spec.server_data and not method.uses_public():
        yield f"{spec.method} makes no use of the records that server_data takes from the clients for the server"
    if plan.algorithm.needs_steps and max(plan.local.count(n) for n in plan.sizes) == 1:
        yield f"with one local step per round {spec.algorithm} does what fedavg does: raise local_steps"
    if shown.on is None and shown.text:
        yield shown.text
    if held is not None and shown.deviation > evaluation.WORST:
        yield (
            f"the noise of an evaluation on {held.kind} records has deviation {shown.deviation:.2g}: hold out more "
            "records, or lower release_noise and raise evaluate_every"
        )


def _large_delta(method: Method, plan: Plan, viewer: str, everyone: Facts) -> Iterator[str]:
    """Yield a warning if delta is so large that publishing one unit in full would satisfy the guarantee."""
    if not method.private:
        return
    unit = price.cost_to(viewer, pricing.planned(method, plan)).unit
    if plan.delta * (n := everyone.units(unit)) >= 1:
        many = f"1/{n} for {n} {unit}s" if unit != "user" else "one over the number of users"  # which may be private
        way = f"well below {1 / n:.1g}, for example {0.1 / n:.0e}" if unit != "user" else "well below that"
        yield (
            f"delta = {plan.delta:g} is not below {many}: publishing one {unit} in full would satisfy it. "
            f"Use delta {way}"
        )


def _federation(
    spec: Spec,
    device: torch.device,
    held: Clients,
    rng: Stream,
    known: Facts,
    parts: dict[str, ClientPart],
    work: Work,
) -> Federation:
    public, cohort = Stream.research(spec.seed or 0), spec.client_rate * held.count
    number = _blocks(spec, held.count)
    if spec.federation in ("simulator", "flower"):  # real clients take the place of those that stand in for them
        return Simulator(device, held, rng, spec.memory_gb, public, known, parts, number)
    if spec.standardise and rng.secure:
        raise SpecError(
            "standardise in secure mode keeps the key of its noise on file until the first checkpoint, and with "
            f"federation = {spec.federation} nobody but the clients may hold it: use federation = simulator."
        )
    keys = None if rng.secure else rng  # in secure mode each worker draws its own key
    rebuild = partial(settled_model, keys=_model_keys(spec))
    clients_on = _workers_device(spec)
    room = Room.of(known.bytes(), work.model.layout.dim, cohort, spec.memory_gb)
    size = spec.workers or capacity.chosen(number, cohort, room), spec.memory_gb
    if spec.federation == "workers":
        return Workers(held, keys, rebuild, *size, public, number, known, parts, room=room)
    return Workers(held, keys, rebuild, *size, public, number, known, parts, RayActors(clients_on), clients_on, room)


def _workers_device(spec: Spec) -> str:
    """Return where clients of workers train: bits are equal on CPUs alone, so `auto` is the CPU."""
    return "cuda" if spec.device == "cuda" else "cpu"


def _blocks(spec: Spec, clients: int) -> int:
    """Return the number of blocks of a run, which depends on nothing but the spec and the number of clients."""
    usual = blocks.usual(spec.client_rate * clients, _workers_device(spec)) if spec.in_workers else 1
    return blocks.number(clients, spec.blocks or usual)


def settled_model(module: nn.Module, loss: SampleLoss, record: Batch, keys: dict[str, Any]) -> Model:
    """Return a model whose gradient path is chosen by a trial on one record."""
    model = _model(module, loss, **keys)
    model.gradients.sums(model.layout.read(module), record, 1.0, seeds=[0])
    return model


def _model_keys(spec: Spec) -> dict[str, Any]:
    return {"autocast": spec.precision == "bfloat16", "compiled": spec.compile}


def _model(module: nn.Module, loss: SampleLoss, autocast: bool, compiled: bool) -> Model:
    layout = Layout.of(module)
    gradients = CohortGradients.of(module, loss, layout)
    gradients.autocast, gradients.compiled = autocast, compiled
    return Model(module, layout, loss, gradients)


def again(job: Job) -> Job:
    """Return the job with its gradients rebuilt after its module changed, since gradients hold copies of the module."""
    return replace(job, model=_model(job.model.module, job.model.loss, **_model_keys(job.spec)))


def _test_owners(owners: Any, test: tuple[Tensor, Tensor] | None, clients: int) -> Ints | None:
    if owners is None:
        return None
    if test is None:
        raise DataError("test_clients needs test: the records whose clients it names.")
    client_ids = np.asarray(owners)
    if client_ids.dtype.kind not in "iu" or client_ids.shape != (len(test[1]),):
        raise DataError(f"test_clients must hold one whole number for each of {len(test[1])} test records.")
    if len(client_ids) and int(client_ids.max()) >= clients:
        raise DataError(
            f"test_clients names client {int(client_ids.max())}; there are {clients}, numbered from 0 (-1: nobody)."
        )
    return client_ids.astype(np.int64)


def _sample(x: Tensor) -> Tensor:
    """Return a few different records to try a model on, even if the client has only one."""
    if len(x) > 1 or not x.is_floating_point():
        return x[:3] if len(x) > 1 else x.expand(2, *x.shape[1:])
    return torch.cat([x, x.flip(-1) * 0.5])


def _check_values(module: nn.Module, x: Tensor, y: Tensor) -> None:
    """Raise DataError unless the model gives as many numbers per record as there are to predict."""
    with Snapshot(module), torch.no_grad():
        given, wanted = module(x[:1]).numel(), y[:1].numel()
    if given != wanted:
        hint = " For classes, make y whole numbers." if y.ndim == 1 else ""
        raise DataError(
            f"the model gives {given} numbers per record, but there are {wanted} to predict: y has shape "
            f"{list(y.shape)} and type {y.dtype}.{hint}"
        )


def _outputs(module: nn.Module, x: Tensor) -> tuple[int, ...]:
    """Return the shape of the model's output for one record."""
    with Snapshot(module), torch.no_grad():
        return tuple(module(x[:1]).shape[1:])


def _check_labels(module: nn.Module, held: Any, x: Tensor, test: tuple[Tensor, Tensor] | None) -> None:
    """Refuse labels of a multi-label task that are not 0 or 1, or that the model has no outputs for."""
    if not isinstance(held, ArrayClients):
        raise DataError(f"task = {MULTI_LABEL} needs clients whose records are in memory.")
    check_multi_label("the clients' data", held.y, outputs := _outputs(module, x))
    if test is not None:
        check_multi_label("the test data", test[1], outputs)


def _check_classes(module: nn.Module, held: Any, x: Tensor, test: tuple[Tensor, Tensor] | None) -> Any:
    shape = _outputs(module, x)
    outputs, wanted = int(shape[-1]), shape[:-1]
    for what, y in (
        ("the clients' data", getattr(held, "y", None)),
        ("the test data", None if test is None else test[1]),
    ):
        if y is not None and tuple(y.shape[1:]) != wanted:
            hint = "y.reshape(-1)" if tuple(y.shape[1:]) == (1,) else "y.argmax(1) where it is one-hot"
            raise DataError(
                f"{what}: y has shape {list(y.shape)}, but the model expects one class per "
                f"{'position' if wanted else 'record'}. Try {hint}."
            )
    if isinstance(held, ArrayClients):
        check_labels(held.y, outputs, "the clients' data")
    if test is not None:
        check_labels(test[1], outputs, "the test data")
    return LazyClients(held.count, held.records, held.make, outputs) if isinstance(held, LazyClients) else held
