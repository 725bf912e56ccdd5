"""Settings for tables that a spec leaves open, chosen by public facts and by the noise: docs/defaults.md.

A table becomes rows of unit length (models/_rows.py). Their columns are centred and scaled by charged statistics
(measures/row_moments.py) unless these would be noise alone. Gradients are clipped at CLIP, and the learning rate is
such that the noise which accumulates over the run is about KAPPA in the largest logit (or SPREAD of a target's range):

    rate = min(LARGEST, KAPPA / (sqrt(2 ln classes) sqrt(steps) deviation of one step))

Nothing here depends on a private value: numbers of records, clients, columns and classes are public by the sentence of
the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sordino.contract import pricing
from sordino.contract.method import Method, Plan
from sordino.core import plugin
from sordino.core.errors import SpecError
from sordino.core.types import Model
from sordino.data.dataset import Dataset
from sordino.measures import row_moments
from sordino.models._rows import Midpoint, UnitRows
from sordino.privacy.accountants import gdp
from sordino.spec.spec import Spec, plugin_fields

MODELS = ("linear", "mlp")
CLIP, REGRESSION_CLIP = 0.5, 0.25
FEATURES_CLIP, FEATURES_LARGEST = 0.1, 8192.0  # fixed features of pictures: classes differ by a little in many columns
FEATURES_LOUDER = 2.0  # they bear so many times the noise of a table (benchmarks/drawn_prior.py)
FEATURES_PLAIN = 128.0  # the rate without privacy for them
KAPPA, LARGEST = 2.0, 128.0  # classification
SPREAD, REGRESSION_LARGEST = 0.15, 2.0  # regression, in units of the declared range of the target
PLAIN, REGRESSION_PLAIN = 8.0, 1.0  # rates without privacy: stable for rows of unit length
NETWORK = 3.0  # a network gets the rate of a linear model divided by this
NOISY = 0.1  # noise-to-signal ratio from which columns without bounds stay on their own scale
LOUD, DROWNS = 0.2, 0.3  # noise-to-signal ratios from which a run warns
AVERAGING = "tail:0.25"


def table(spec: Spec, data: Dataset) -> Spec:
    """Return the spec with the settings for a table, if the data are one and the spec leaves them open."""
    featured = spec.features != "none"
    numbers = featured or (data.x_train.ndim == 2 and data.x_train.is_floating_point())
    rows = numbers and data.task in ("classification", "regression")
    if spec.normalise is None:
        printed = type(spec.method_object()).claim is not Method.claim  # a method as printed keeps its paper's settings
        usual = rows and spec.model in MODELS and not spec.standardise and not printed
        scale = "rows" if not featured else "none"
        if "drawn-prior" in str(spec.features).split("+") and spec.model == "linear":
            scale = "centred"
        spec = replace(spec, normalise=scale if usual else "none")
    if spec.normalise == "none":
        return spec
    if not rows or spec.model not in MODELS:
        raise SpecError(
            f"normalise = {spec.normalise} is for tables of numbers or fixed features and for the models "
            f"{' and '.join(MODELS)}; {data.name} has records of shape {list(data.x_train.shape[1:])}, and the model "
            f"is {spec.model}. Use normalise = none."
        )
    if spec.averaging is None:
        spec = replace(spec, averaging=AVERAGING)
    method = spec.method_object()
    options = dict(spec.options)
    clipped = (
        method.private and method.noisy_steps and "clip" in {f.name for f in plugin_fields("methods", spec.method)}
    )
    if clipped and "clip" not in options:
        usual_clip = FEATURES_CLIP if featured else CLIP
        options["clip"] = usual_clip if data.task == "classification" else REGRESSION_CLIP
        spec = replace(spec, options=tuple(sorted(options.items())))
    return spec


def on_scale(spec: Spec, data: Dataset, units: int) -> Spec:
    """Return the spec with a logarithmic scale of the columns if no bounds are declared, unless there is much noise.

    Small differences of logarithms are lost in noise sooner than differences of the numbers themselves.

    Args:
        spec: the spec, with the settings of `table` and the number of clients.
        data: the data.
        units: the public number of protected units (records, users or clients), after contributions are bounded.
    """
    if data.bounded or spec.normalise != "rows":
        return spec
    noise = 0.0
    if (method := spec.method_object()).private:
        holders = 1 if method.viewer == "public" else spec.clients
        noise = math.sqrt(holders) / (gdp.mu_for(spec.epsilon, spec.delta) * units)
    quiet = noise * math.sqrt(data.x_train.shape[1] + 1) < NOISY
    return replace(spec, normalise="log-rows") if quiet else spec


def module(spec: Spec, shape: tuple[int, ...], outputs: int, unit_target: bool = False) -> nn.Module:
    """Return the model for records of a shape; a model for tables starts with rows of unit length.

    Args:
        spec: the spec, with model and normalise.
        shape: shape of one record.
        outputs: number of classes or predicted values.
        unit_target: whether a number in a declared range is predicted, scaled to [0, 1].
    """
    make: Any = plugin.load("models", str(spec.model))
    if spec.normalise in (None, "none"):
        return make(shape, outputs)  # type: ignore[no-any-return]
    width = (shape[0] + 1,)
    rows = UnitRows(shape[0], log=spec.normalise == "log-rows")
    layers = [rows, make(width, outputs, bias=False) if spec.model == "linear" else make(width, outputs)]
    return nn.Sequential(*layers, *[Midpoint()] * unit_target)


def tuned(
    spec: Spec, method: Method, plan: Plan, model: Model, features: int, regression: bool
) -> tuple[Method, Plan, tuple[str, ...]]:
    """Return the method and the plan with the clip and the learning rate that follow from the noise, and notes.

    Args:
        spec: the spec, with the settings of `table`.
        method: its method.
        plan: its plan, with the noise multiplier.
        model: the model, whose first layer is `UnitRows`.
        features: the number of columns.
        regression: whether targets are numbers, not classes.
    """
    if spec.normalise in (None, "none"):
        return method, plan, ()
    classes = None if regression else _outputs(model.module, features)
    notes = tuple(_drowned(spec, method, plan, features)) if method.private else ()
    if spec.learning_rate is not None:
        return method, plan, notes
    steps, featured = plan.local.count(plan.smallest_client), spec.features not in (None, "none")
    if not method.private:
        rate = (FEATURES_PLAIN if featured else PLAIN) if classes else REGRESSION_PLAIN
    elif method.noisy_steps:
        rate = _rate(classes, plan.rounds * steps, step_deviation(method, plan), featured)
    else:
        method, clip = _clipped(spec, method, plan, classes)
        rate = clip / (CLIP * steps)  # at which a gradient of the usual length fills the clip
    if sum(isinstance(part, nn.Linear) for part in model.module.modules()) > 1:
        rate /= NETWORK
    why = "the noise" if method.private else "rows of unit length"
    chosen = f"the learning rate {rate:.3g} follows from {why} (docs/defaults.md); set learning_rate to choose another"
    return method, replace(plan, local=replace(plan.local, learning_rate=rate)), (*notes, chosen)


def _rate(classes: int | None, steps: int, deviation: float, featured: bool = False) -> float:
    """Return the rate at which the noise that accumulates over the steps is as large as predictions can bear."""
    highest = FEATURES_LARGEST if featured else LARGEST
    louder = FEATURES_LOUDER if featured else 1.0
    largest, noise = (REGRESSION_LARGEST, SPREAD) if classes is None else (highest, louder * _bearable(classes))
    return min(largest, noise / (math.sqrt(steps) * deviation))


def _bearable(classes: int) -> float:
    """Return the noise in one logit at which the largest of them all has noise of about KAPPA."""
    return KAPPA / math.sqrt(2 * math.log(max(2, classes)))


def _clipped(spec: Spec, method: Method, plan: Plan, classes: int | None) -> tuple[Method, float]:
    """Return a method that clips whole updates, and its clip; it follows from the noise if the spec leaves it open."""
    clip = getattr(method, "clip", None)
    if clip is None or "clip" in dict(spec.options):
        return method, float(clip or CLIP)
    chosen = CLIP * _rate(classes, plan.rounds, step_deviation(method, plan) * CLIP / clip)
    return replace(method, clip=chosen), chosen  # type: ignore[type-var]


def step_deviation(method: Method, plan: Plan) -> float:
    """Return the noise deviation, per coordinate, of the mean clipped gradient (or update) of one step."""
    release = method.releases(plan)[0]
    noise = pricing.step_noise(method, plan) * (release.bound or 0.0)
    if release.where == "server":
        return noise / plan.expected_cohort
    shared = method.linear(plan) and plan.split > 1
    clients = plan.population / plan.split if shared else plan.expected_cohort
    units = plan.local.expected_batch(plan.mean_client) if method.noisy_steps else 1.0
    return noise * math.sqrt(clients) / (units * plan.expected_cohort)


def _drowned(spec: Spec, method: Method, plan: Plan, features: int) -> Iterator[str]:
    """Yield a warning, from public figures alone, if the noise of the budget is large next to any signal."""
    unit, central = spec.unit or method.units[0], method.viewer == "public"
    many = row_moments.units(plan, unit, central)
    z, columns = row_moments.whole_budget(spec, method, plan), math.sqrt(features + 1)
    ratio = z * math.sqrt(row_moments.parties(plan, central)) / many * columns
    if ratio <= LOUD:
        return
    level = "drowns" if ratio > DROWNS else "is large next to"
    mu = gdp.mu_for(spec.epsilon, spec.delta) * ratio / LOUD
    ways = [f"epsilon = {gdp.epsilon_of_mu(mu, spec.delta):.2g}", f"{math.ceil(many * ratio / LOUD):,} {unit}s"]
    if plan.channel.shows_rows and not central and "secure-sum" in method.channels:
        less = z * math.sqrt(plan.population / max(1, plan.population - 1)) / many * columns
        word = "it would be small" if less <= LOUD else f"the ratio would be {less:.2g}"
        ways.insert(0, f"channel = secure-sum ({word})")
    yield (
        f"noise {level} the signal: over the whole budget its length is {ratio:.2g} of the longest mean gradient there "
        f"can be, and models become useful below about {LOUD:g}. What would help: {', '.join(ways[:-1])} or {ways[-1]}"
    )


def _outputs(module: nn.Module, features: int) -> int:
    """Return the number of outputs of a model for rows with this number of columns."""
    with torch.no_grad():
        return int(module(torch.zeros(1, features, device=next(module.parameters()).device)).shape[-1])
