"""A Spec (and what a user brings) -> a Job: everything a run needs, checked, before anything is spent."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.channels.direct import Direct
from sordino.core import plugin
from sordino.core.errors import BudgetError, DataError, SpecError
from sordino.core.rng import Ints, Stream
from sordino.core.types import Batch, Clients, Model, SampleLoss, State
from sordino.core.vector import Layout
from sordino.data import partition
from sordino.data.clients import ArrayClients, LazyClients, adopt, check_labels, checked
from sordino.data.load import images, load
from sordino.data.scattering import scattering
from sordino.engines.base import Engine
from sordino.engines.simulator import Simulator
from sordino.gradients.engine import Gradients
from sordino.methods.base import Local, Method, Plan
from sordino.models import losses
from sordino.models.validate import fix, validate
from sordino.privacy import account, personal, price
from sordino.privacy.accountants import pld
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import Cost
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.samplers import FixedSize, Poisson, Sampler
from sordino.runs.spec import Spec


@dataclass(frozen=True)
class Job:
    spec: Spec
    method: Method
    plan: Plan
    model: Model
    clients: Clients
    test: tuple[Tensor, Tensor] | None
    engine: Engine
    channel: Direct
    rng: Stream
    viewer: str
    notes: tuple[str, ...]  # what was changed or chosen on the way
    budgets: personal.Budgets | None = None  # of the clients, where they have their own
    caps: Ints | None = None  # [clients]: in how many rounds each may take part for its own budget

    def guarantee(self, viewer: str, rounds: int, participations: int, rough: bool = False) -> Guarantee:
        """What so many rounds cost; `rough` is quicker and still an upper bound."""
        costs, plan, spec = self.method.costs(self.plan), self.plan, self.spec
        cells = pld.ROUGH if rough else pld.FINE
        return price.guarantee(
            costs, viewer, plan.sampler, plan.population, rounds, participations, spec.delta, spec.mode, cells
        )

    @property
    def viewers(self) -> tuple[str, ...]:
        """Against whom a guarantee is reported."""
        return tuple(dict.fromkeys((*price.VIEWERS, self.viewer)))

    def promise(self) -> Guarantee:
        """What the whole plan costs the viewer the budget is meant against."""
        return self.guarantee(self.viewer, self.plan.rounds, self.plan.participations)

    def whole(self) -> Cost:
        """The whole plan as one event, against the viewer of the budget."""
        plan = self.plan
        cost = price.cost_to(self.viewer, self.method.costs(plan))
        found = price.total(cost, self.viewer, plan.sampler, plan.population, plan.rounds, plan.participations)
        event = found[0] if len(found) == 1 else min(found, key=lambda e: account.epsilon(e, self.spec.delta))
        return Cost(cost.unit, cost.relation, self.viewer, event)


def from_spec(spec: Spec) -> Job:
    """A job on a named dataset and model."""
    setup = Stream.research(spec.seed or 0)
    if spec.learning_rate is None and (spec.features, spec.model) == ("scattering", "linear"):
        spec = replace(spec, learning_rate=8.0)  # chosen on a validation split: docs/results/mnist.md
    data = load(spec.dataset, spec.data_dir)
    if spec.features == "scattering":
        if data.x_train.dtype != torch.uint8:
            raise DataError(f"features = scattering needs uint8 pictures; {spec.dataset} has {data.x_train.dtype}.")
        x_train, x_test = scattering(data.x_train), scattering(data.x_test)
    else:
        x_train, x_test = images(data.x_train), images(data.x_test)
    classes = int(data.y_train.max()) + 1 if not data.y_train.is_floating_point() else 1
    if data.client_train is not None:
        parts = [np.flatnonzero(data.client_train == c) for c in np.unique(data.client_train)]
        spec = replace(spec, clients=len(parts))
    else:
        parts = partition.iid(len(x_train), spec.clients, setup.at("partition"))
    clients = ArrayClients.split(x_train, data.y_train, parts)
    make = plugin.load("models", spec.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.at("init").integer())
        module: nn.Module = make(tuple(x_train.shape[1:]), classes)
    return build(spec, module, clients, None, (x_test, data.y_test))


def build(
    spec: Spec,
    module: nn.Module | Callable[[], nn.Module],
    clients: Any,
    loss: str | SampleLoss | None = None,
    test: tuple[Any, Any] | None = None,
) -> Job:
    """A job on one's own module (or a function that makes one) and one's own clients."""
    notes: list[str] = []
    held = adopt(clients)
    device = _device(spec.device)
    module = copy.deepcopy(module if isinstance(module, nn.Module) else module()).cpu()  # the caller's stays as it is
    if spec.fix_model:
        module, notes = fix(module)
    first = held.fetch([0], torch.device("cpu"))
    sample_loss = losses.loss_for(loss, first.y)
    pair = None if test is None else checked("the test data", *test)
    method: Method = spec.method_object()
    validate(module, _sample(first.x))
    if sample_loss is losses.cross_entropy:
        held = _check_classes(module, held, first.x, pair)
    module = module.to(device)
    layout = Layout.of(module)
    model = Model(module, layout, sample_loss, Gradients.of(module, sample_loss, layout))
    one = Batch(first.x[:1].to(device), first.y[:1].to(device), (1,))
    model.gradients.sums(layout.read(module), one, 1.0, seeds=[0])  # settles how gradients are clipped
    plan, viewer = _plan(spec, method, held)
    budgets, caps, more = _personal(spec, method, plan, viewer)
    method.begin(State(layout.read(module)), plan)  # refuses what cannot start before there is a run folder
    if isinstance(held, ArrayClients) and device.type != "cpu":
        held = held.to(device)
    return Job(
        spec=spec,
        method=method,
        plan=plan,
        model=model,
        clients=held,
        test=None if pair is None else (pair[0].to(device), pair[1].to(device)),
        engine=Simulator(device, spec.memory_gb),
        channel=Direct(),
        rng=Stream.research(spec.seed or 0) if spec.mode == "research" else Stream.operating_system(),
        viewer=viewer,
        notes=(*notes, *more),
        budgets=budgets,
        caps=caps,
    )


def _sample(x: Tensor) -> Tensor:
    """A few different records to try a model on; a client may have a single one."""
    if len(x) > 1 or not x.is_floating_point():
        return x[:3] if len(x) > 1 else x.expand(2, *x.shape[1:])
    return torch.cat([x, x.flip(-1) * 0.5])


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise SpecError("device = cuda, but torch finds no CUDA device. Use device = auto or cpu.")
    return torch.device(name)


def _check_classes(module: nn.Module, held: Any, x: Tensor, test: tuple[Tensor, Tensor] | None) -> Any:
    with torch.no_grad():
        outputs = int(module(x[:1]).shape[-1])
    if isinstance(held, ArrayClients):
        check_labels(held.y, outputs, "the clients' data")
    if test is not None:
        check_labels(test[1], outputs, "the test data")
    return LazyClients(held.count, held.records, held.make, outputs) if isinstance(held, LazyClients) else held


def _sampler(spec: Spec, population: int) -> Sampler:
    if spec.client_sampling == "fixed" and spec.client_rate < 1:
        return FixedSize(max(1, round(spec.client_rate * population)))
    return Poisson(spec.client_rate)


def _plan(spec: Spec, method: Method, held: Any) -> tuple[Plan, str]:
    sizes = held.sizes()
    if spec.batch_size is not None and spec.batch_size > min(sizes):
        raise SpecError(
            f"batch_size {spec.batch_size} is larger than the smallest client's {min(sizes)} records. "
            "Use a smaller batch_size, or batch_rate."
        )
    no_batch = spec.batch_size is None and spec.batch_rate is None
    local = Local(
        steps=spec.local_steps if spec.local_epochs is None else None,
        epochs=spec.local_epochs,
        batch_size=spec.batch_size,
        batch_rate=1.0 if no_batch else spec.batch_rate,
        optimizer=spec.optimizer,
        learning_rate=0.1 if spec.learning_rate is None else spec.learning_rate,
        momentum=spec.momentum,
    )
    if local.steps is None and local.epochs is None:
        local = replace(local, steps=1)
    plan = Plan(
        rounds=spec.rounds,
        population=held.count,
        sampler=_sampler(spec, held.count),
        local=local,
        max_participations=spec.max_participations,
        sizes=sizes,
        mean_client=held.mean_size(),
        server_lr=spec.server_lr,
        server_momentum=spec.server_momentum,
    )
    viewer = spec.viewer or method.viewer
    if not method.private:
        return plan, viewer
    return replace(plan, noise_multiplier=_calibrate(method, plan, viewer, spec)), viewer


def _personal(
    spec: Spec, method: Method, plan: Plan, viewer: str
) -> tuple[personal.Budgets | None, Ints | None, tuple[str, ...]]:
    """The clients' own budgets and what they pay for; the noise stays that of the run."""
    if spec.budgets is None:
        return None, None, ()
    if not method.private:
        raise SpecError(f"budgets need a private method; {spec.method} adds no noise.")
    dealer = Stream.research(spec.seed or 0).at("budgets")  # public, also in secure mode
    budgets = personal.read(spec.budgets, plan.population, spec.delta, dealer)
    event = price.cost_to(viewer, method.costs(plan)).event
    rich = np.array([e >= spec.epsilon and d >= spec.delta for e, d in budgets.kinds])[budgets.of]
    caps = np.where(rich, plan.participations, personal.participations(event, budgets, plan.participations))
    out = np.flatnonzero(caps == 0)
    if len(out) == plan.population:
        raise BudgetError(
            f"no client's own budget pays for one participation at noise multiplier {plan.z:.4g}. "
            "Lower the run's epsilon (more noise), or raise the budgets."
        )
    if not len(out):
        return budgets, caps, ()
    names = ", ".join(map(str, out[:10])) + (", ..." if len(out) > 10 else "")
    return budgets, caps, (f"{len(out)} clients never take part, their budgets pay for no round: {names}",)


def _calibrate(method: Method, plan: Plan, viewer: str, spec: Spec) -> float:
    """The least noise with which the whole plan stays within the budget, against the viewer."""

    def alternatives(z: float) -> tuple[Any, ...]:
        cost = price.cost_to(viewer, method.costs(replace(plan, noise_multiplier=z)))
        return price.total(cost, viewer, plan.sampler, plan.population, plan.rounds, plan.participations)

    try:
        found = [
            noise_multiplier(lambda z, i=i: alternatives(z)[i], spec.epsilon, spec.delta)  # type: ignore[misc]
            for i in range(len(alternatives(1.0)))
        ]
    except BudgetError as error:
        if viewer == "server" and method.viewer != "server":
            hint = f"{spec.method} trusts the server: use viewer = {method.viewer}, or --method dp-sgd."
            raise BudgetError(f"{error} {hint}") from error
        raise
    return min(found)
