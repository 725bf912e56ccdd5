"""The public plan of a run, by its spec and the public facts of the data alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sordino.algorithms.base import Algorithm
from sordino.channels.base import Channel
from sordino.channels.secure_sum import SecureSum
from sordino.contract.method import Local, Method, Plan
from sordino.contract.presence import Stragglers
from sordino.core.errors import DataError, RunError, SpecError
from sordino.core.message import Message
from sordino.core.vector import Layout
from sordino.federations.facts import Facts
from sordino.privacy import trust
from sordino.privacy.crowd import honest_in_any_sum
from sordino.privacy.samplers import FixedSizeSampler, Poisson, Sampler
from sordino.runs import own_channel, returned
from sordino.spec.spec import Spec


def _sampler(spec: Spec, population: int) -> Sampler:
    if spec.client_sampling == "fixed" and spec.client_rate < 1:
        return FixedSizeSampler(max(1, round(spec.client_rate * population)))
    return Poisson(spec.client_rate)


def _channel(spec: Spec, method: Method) -> Channel:
    """Return the channel, with the modulus that the method asks for if it is a secure sum."""
    channel, bits = own_channel.checked(spec.channel_object()), method.modulus_bits()
    return SecureSum(bits) if bits is not None and isinstance(channel, SecureSum) else channel


def plan_of(spec: Spec, method: Method, known: Facts, layout: Layout) -> tuple[Plan, str]:
    """Return the public plan, by public facts of the data alone, and the viewer that the budget is meant against."""
    by_user = spec.unit == "user" and method.viewer == "server"  # users are what is drawn and counted
    _check_users(spec, known)
    counts = known.sizes(by_user)
    sizes = tuple(np.unique(counts).tolist())
    _check_batch(spec, method, min(sizes), "users" if by_user else "records")
    algorithm: Algorithm = spec.algorithm_object()
    local = algorithm.local(_local(spec))
    if algorithm.plain_sgd and local.optimizer != "sgd":
        raise SpecError(
            f"{spec.algorithm} holds for plain local SGD steps: use optimizer = sgd, not {local.optimizer}."
        )
    algorithm.check_steps(min(local.count(n) for n in sizes))
    law = _law(spec, algorithm, known.population)
    channel = _channel(spec, method)
    steps = np.array([law.mean_steps(local.count(int(n))) for n in counts])
    plan = Plan(
        rounds=spec.rounds,
        population=known.population,
        sampler=_sampler(spec, known.population),
        algorithm=algorithm,
        local=local,
        max_participations=spec.max_participations,
        sizes=sizes,
        mean_client=float(counts.mean()),
        mean_steps=float((steps * counts).sum() / max(1, counts.sum())),
        server_lr=algorithm.server_lr if spec.server_lr is None else spec.server_lr,
        stragglers=law,
        unit=spec.unit,
        clients_per_user=spec.clients_per_user,
        epsilon=spec.epsilon,
        delta=spec.delta,
        channel=channel,
        certain=spec.federation != "flower" or not channel.shows_rows,  # a site may be silent, and the others go on
        robust=spec.merging(),
        colluders=trust.viewer(spec.viewer or method.viewer).colluders,
        min_cohort=spec.min_cohort,
        allowed_dropouts=spec.allowed_dropouts,
        capped=spec.budgets is not None and not method.own_noise,
        dim=layout.dim,
        layers=len(layout.layers()),
    )
    _check_channel(spec, method, plan)
    _check_merge(spec, method, plan)
    if plan.thresholds:
        _check_thresholds(spec, plan)
    returned.Checked(method, spec.method, error=SpecError).require(plan)
    returned.check_releases(spec, method, plan)
    return plan, spec.viewer or method.viewer


def _check_users(spec: Spec, known: Facts) -> None:
    """Refuse to protect users that the data do not name, or that lie in more clients than was said."""
    if spec.unit == "user" and known.users is None:
        raise DataError(
            "unit = user, but the clients do not say whose each record is: give users (one number per record)."
        )
    if spec.unit == "user" and (most := known.spread) > spec.clients_per_user:
        raise DataError(
            f"some user's records are at {most} clients, but clients_per_user = {spec.clients_per_user}. "
            "Raise it, or bound the users' contributions."
        )


def _check_batch(spec: Spec, method: Method, smallest: int, what: str) -> None:
    """Refuse batches that the smallest client cannot fill: the cost of noisy steps is the cost for that client."""
    if method.private and method.noisy_steps and spec.batch_size is not None and spec.batch_size > smallest:
        raise SpecError(
            f"batch_size {spec.batch_size} is larger than the smallest client's {smallest} {what}. "
            "Use a smaller batch_size, or batch_rate."
        )


def _law(spec: Spec, algorithm: Algorithm, population: int) -> Stragglers:
    """Return the law by which clients fail, are late or slow; refuse one that has no accounting."""
    law = spec.stragglers()
    law.require(population, spec.rounds)
    if law.late and spec.client_sampling == "fixed" and spec.client_rate < 1:
        raise SpecError("late answers with cohorts of a fixed size have no accounting: use client_sampling = poisson.")
    if algorithm.mirrored and (law.late or law.dropout[0] != law.dropout[1]):
        raise SpecError(
            f"{spec.algorithm} needs every answer to count once and in full: use late = 0 and one dropout for all."
        )
    return law


def _check_channel(spec: Spec, method: Method, plan: Plan) -> None:
    """Refuse a channel that the method, the stragglers or the viewer does not go with."""
    law = plan.stragglers
    if not {spec.channel, getattr(plan.channel, "like", "")} & set(method.channels):
        why = f" ({method.channel_reason})" if method.channel_reason else ""
        known = ", ".join(method.channels)
        raise SpecError(f"{spec.method} does not go with channel = {spec.channel}: use {known}{why}.")
    if method.reads == "rows" and not plan.channel.shows_rows:
        raise SpecError(f"{spec.method} reads single clients' rows, but channel = {spec.channel} shows none.")
    if not law.none:  # a channel that carries no weights says so before anything is spent
        weight = torch.from_numpy(law.weights(np.array(law.dropout)))
        try:
            plan.channel.seal(Message({"row": weight[:, None]}, weight, released=frozenset(["row"])), (0, 1))
        except RunError as error:
            raise SpecError(f"channel = {spec.channel} does not go with these stragglers: {error}") from error
    if law.late and method.viewer == "public" and not plan.channel.shows_rows:
        raise SpecError(
            f"late answers of {spec.method} may exceed the bound of the round they arrive in, and channel = "
            f"{spec.channel} shows no row to clip again: use late = 0."
        )
    if spec.channel != "direct" and plan.colluders >= plan.population:
        raise SpecError(f"viewer {spec.viewer}: of {plan.population} clients at least one must be honest.")


def _check_merge(spec: Spec, method: Method, plan: Plan) -> None:
    """Refuse a robust merge that the channel, the method or the size of the cohorts does not go with."""
    rule = plan.robust
    if rule.plain:
        return
    if not plan.channel.shows_rows:
        raise SpecError(
            f"merge = {spec.merge} looks at the rows of single clients, and channel = {spec.channel} shows the server "
            "their sum alone: use channel = direct, or merge = mean."
        )
    if rule.single_row and method.reads == "rows":
        raise SpecError(f"{spec.method} merges the rows of single clients itself: use merge = mean or norm-bound.")
    ready = replace(plan, noise_multiplier=1.0)
    declares = returned.Checked(method, spec.method, error=SpecError).releases
    at_server = any(r.where == "server" and not r.onto for r in declares(ready))
    if rule.single_row and at_server:
        raise SpecError(
            f"the noise that the server of {spec.method} adds is calibrated for a sum, in which one client counts no "
            f"more than its clip; merge = {spec.merge} is none: use merge = norm-bound, or a method whose clients add "
            "the noise."
        )
    if plan.expected_cohort < rule.fewest:
        raise SpecError(
            f"merge = {spec.merge} needs at least {rule.fewest} clients in a round (2 F + 3), and about "
            f"{plan.expected_cohort:.3g} are drawn."
        )


def _check_thresholds(spec: Spec, plan: Plan) -> None:
    """Refuse thresholds that hide nobody, that no round can keep, or that do not go with the stragglers."""
    law, least, missing = plan.stragglers, plan.smallest_cohort, plan.allowed_dropouts
    if "direct" in (spec.channel, getattr(plan.channel, "like", "")):
        raise SpecError(
            "min_cohort and allowed_dropouts say how many messages hide one another, but channel = "
            f"{spec.channel} shows each of them: use channel = secure-sum or shuffler, or drop both keys."
        )
    if law.late:
        raise SpecError("late answers are in no cohort that min_cohort and allowed_dropouts could count: use late = 0.")
    if law.dropout[0] != law.dropout[1]:
        raise SpecError(
            f"dropout = {spec.dropout} weighs answers, and so the shares of noise in them, by how often their clients "
            "fail: with min_cohort or allowed_dropouts use one dropout for all."
        )
    most = plan.sampler.size if isinstance(plan.sampler, FixedSizeSampler) else plan.population
    if least > most:
        raise SpecError(f"min_cohort = {least}, but at most {most} clients are drawn: no round would be released.")
    if missing and spec.min_cohort is None and least == 1:
        raise SpecError(
            f"allowed_dropouts = {missing} needs min_cohort: with client_rate = {spec.client_rate:g} a single client "
            "may be drawn alone, and cohorts that small are then not released."
        )
    if not plan.channel.shows_rows and honest_in_any_sum(least, missing, plan.colluders) < 1:
        where = f"cohorts of {least} clients of which {missing} may be missing and {plan.colluders} may collude"
        raise SpecError(
            f"a secure sum over {where} may show single messages to a server that tells its clients different lists "
            f"of survivors. Use min_cohort of at least {2 * missing + plan.colluders + 1}, or fewer allowed_dropouts."
        )
    if least <= missing:
        raise SpecError(f"allowed_dropouts = {missing} of cohorts of {least} leaves nobody: use a larger min_cohort.")


def _local(spec: Spec) -> Local:
    no_batch = spec.batch_size is None and spec.batch_rate is None
    local = Local(
        steps=spec.local_steps if spec.local_epochs is None else None,
        epochs=spec.local_epochs,
        batch_size=spec.batch_size,
        batch_rate=1.0 if no_batch else spec.batch_rate,
        optimizer=spec.optimizer,
        learning_rate=0.1 if spec.learning_rate is None else spec.learning_rate,
        momentum=spec.momentum,
        weight_decay=spec.weight_decay,
        schedule=spec.schedule,
        warmup=spec.warmup,
        augment=spec.augment,
        views=spec.views,
    )
    return replace(local, steps=1) if local.steps is None and local.epochs is None else local
