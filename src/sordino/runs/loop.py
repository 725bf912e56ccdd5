"""The federated round, readable top to bottom."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sordino.contract import pricing
from sordino.contract.method import Method, started
from sordino.contract.outlets import received
from sordino.contract.round_meter import RoundMeter
from sordino.core import faults
from sordino.core.errors import LostRound, RunError
from sordino.core.message import Message
from sordino.core.record import OwnerRecord, RoundRecord
from sordino.core.rng import Ints, Stream
from sordino.core.types import State, Vector
from sordino.core.view import View
from sordino.federations.simulator import Simulator, fresh
from sordino.ledger.account import Account
from sordino.measures import beside, held_out
from sordino.measures.figure import Figure
from sordino.privacy import price, trust
from sordino.run_folder.folder import RunFolder
from sordino.run_folder.views import Observe, ViewRecorder, shown
from sordino.runs import returned, statistics
from sordino.runs.callbacks import End
from sordino.runs.job import Costs, Job
from sordino.tasks.metrics import Meter

PUBLIC = "public test data"
FAILED = "error.json"  # in the private part of a run folder: why the run stopped
RECORDS = 2000  # evaluated at once
MOST_LOST = 10  # lost rounds in a row, after which the run stops
CLIENTS = 5000  # most clients whose figures are recorded one by one


def begin(job: Job) -> State:
    """Return the state before the first round."""
    state = State(job.model.layout.read(job.model.module))
    if job.spec.average()[0] != "none":
        state = replace(state, average=state.params.clone())
    if job.statistics:
        state = statistics.noted(job, state)
    return started(returned.checked(job), state, job.model.layout, job.plan)


def remembers(job: Job, state: State) -> bool:
    """Whether clients keep anything between rounds."""
    return bool(fresh(returned.checked(job), state, 1, job.plan)) or job.plan.stragglers.late > 0


def run(
    job: Job,
    folder: RunFolder,
    ledger: Account,
    state: State,
    done: int,
    observe: Sequence[Observe] = (),
    end: End | None = None,
) -> Iterator[RoundRecord]:
    """Run the rounds after the first `done` ones (draw, pay, train, merge) until they or the budget are used up.

    `end` is asked before every round whether the run shall stop here."""
    seen_by: list[Observe] = [ViewRecorder(folder), *observe] if job.spec.record_views else [*observe]
    if isinstance(job.federation, Simulator):  # clients elsewhere tell nobody what their clips did
        job.federation.meter = RoundMeter(job.model.layout)
    # epsilon depends only on the charges, so it is computed while the clients train
    with noting(folder), ThreadPoolExecutor(1) as beside:
        yield from _rounds(job, folder, ledger, state, done, beside, seen_by, end or End())
    folder.remove(FAILED)


def unpaid(job: Job, rng: Stream, observe: Sequence[Observe] = ()) -> State:
    """Run all rounds of a job whose records are made up, for an audit: nothing is charged, written or evaluated.

    The caller opens the federation and answers for the records: with real ones this would be a release nobody paid for.
    """
    job, method = replace(job, rng=rng), returned.checked(job)
    plan, state = job.plan, begin(job)
    taken = np.zeros(plan.population, dtype=np.int64)  # rounds in which each client took part
    for done in range(plan.rounds):
        if method.over(state, plan):
            break
        here = rng.at("round", done)
        drawn = plan.sampler.draw(plan.population, here.at("sample"))
        drawn = drawn[taken[drawn] < plan.participations]
        taken[drawn] += 1
        cohort = plan.stragglers.there(drawn, plan.population, done).tolist()
        state = replace(_average(job, _tried(job, method, state, cohort, here, observe)[1]), round=done + 1)
        shown(observe, View("public", done + 1, "", state))
    return state


@contextlib.contextmanager
def noting(folder: RunFolder) -> Iterator[None]:
    """Write the error that stops a run into its folder, whatever caused it."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(RunError):  # the error may be that the folder cannot be written
            folder.write_json(FAILED, {"error": f"{type(error).__name__}: {error}"})
        raise


def _rounds(
    job: Job,
    folder: RunFolder,
    ledger: Account,
    state: State,
    done: int,
    beside: ThreadPoolExecutor,
    observe: Sequence[Observe],
    end: End,
) -> Iterator[RoundRecord]:
    saved_at, saved_round, lost_in_a_row = time.monotonic(), done, 0
    method = returned.checked(job)
    uneven = job.whole_costs is not None or not job.alike
    while _goes_on(job, ledger, done) and not end.asked:
        if method.over(state, job.plan):
            break
        if uneven and not ledger.repeatable and ledger.has_paid(done):
            # the round was paid for and may have been released; a second charge would exceed the cost in the plan
            done += 1
            state = replace(state, round=done)
            continue
        start, rng = time.monotonic(), job.rng.at("round", done)
        cohort = _draw(job, ledger, done)
        faults.point("drawn")
        _pay(job, method, ledger, state, cohort)
        faults.point("paid")
        epsilon = beside.submit(spent, job, ledger.charged, not _goes_on(job, ledger, done + 1))
        before, after, sent, lost = _tried(job, method, state, cohort.tolist(), rng, observe)
        lost_in_a_row = 0 if lost is None else lost_in_a_row + 1
        state = _average(job, after)
        faults.point("merged")
        done += 1
        state = replace(state, round=done)
        shown(observe, View("public", done, "", state))
        last = not _goes_on(job, ledger, done) or method.over(state, job.plan)
        due = _due(job, done) or (_can_evaluate(job) and last)
        if due and job.held_out is not None:  # after a crash, no held-out record may be evaluated a second time
            _save(job, folder, ledger, state, done)
            saved_at, saved_round = time.monotonic(), done
        foreseen, decided = method.noise(before, job.plan), method.decided(state, job.plan) if lost is None else None
        each: dict[str, Any] | None = {} if last else None  # figures of single clients
        scores = evaluate(job, state.model, done, each) if due else {}
        record = RoundRecord(done, epsilon.result(), clip=_clip(before), noise=foreseen, lost=lost, **scores)
        folder.append(record, _owners(job, state, len(cohort), sent, foreseen, decided, start, each))
        faults.point("recorded")
        if saved_round < done and (
            done == job.plan.rounds or time.monotonic() - saved_at >= job.spec.checkpoint_seconds
        ):
            _save(job, folder, ledger, state, done)
            saved_at, saved_round = time.monotonic(), done
        yield record
        if lost is not None and lost_in_a_row == MOST_LOST and done < job.plan.rounds:
            raise _stopped(job, folder, ledger, state, done, lost)
    if done != saved_round:  # the budget ended the run before its rounds did
        _save(job, folder, ledger, state, done)


def _tried(
    job: Job, method: Method, state: State, cohort: list[int], rng: Stream, observe: Sequence[Observe]
) -> tuple[State, State, list[Message], str | None]:
    """Run a round; if it is lost, the state stays as it was, and the round stays paid.

    Returns:
        The states before the last phase and after the round, the messages sent, and why the round was lost, if it was.
    """
    try:
        before, seen, sent = _round(job, method, state, cohort, rng, observe)
    except LostRound as error:
        return state, state, [], str(error).rstrip(".")
    return before, method.merge(before, seen, job.plan.merging(rng)), sent, None


def _stopped(job: Job, folder: RunFolder, ledger: Account, state: State, done: int, why: str) -> RunError:
    """Save the run and return the error that ends it after too many lost rounds."""
    _save(job, folder, ledger, state, done)
    return RunError(
        f"{MOST_LOST} rounds in a row were lost ({why}); they are charged. Resume the run when more clients answer, or "
        "start another one with a smaller min_cohort or more allowed_dropouts."
    )


def _pay(job: Job, method: Method, ledger: Account, state: State, cohort: Ints) -> None:
    """Charge the cohort for the coming round before it starts; a round that is repeated has been paid for already."""
    if ledger.repeats(state.round) is None:
        faults.point("paying")
        now = pricing.costs(method, job.plan, state.round, state)  # of one participation
        _as_priced(job, method, now, state)
        ledger.spend(state.round, cohort, price.cost_to(job.viewer, now))


def _owners(
    job: Job,
    state: State,
    clients: int,
    sent: Sequence[Message],
    foreseen: float | None,
    decided: dict[str, Any] | None,
    start: float,
    by_client: dict[str, Any] | None,
) -> OwnerRecord:
    """Return the record of a round that only the owner of the data may see."""
    return OwnerRecord(
        round=state.round,
        clients=clients,
        bytes_up=-(-sum(message.bits for message in sent) // 8),
        bytes_down=clients * job.plan.algorithm.numbers_down(state) * state.params.element_size(),
        seconds=time.monotonic() - start,
        answers=None if job.plan.stragglers.none or not sent else len(sent[-1]),
        noise=_injected(decided) if foreseen is None else foreseen,
        decided=decided,
        measured=job.federation.measured() if isinstance(job.federation, Simulator) else None,
        by_client=by_client or None,
    )


def _round(
    job: Job, method: Method, state: State, cohort: list[int], rng: Stream, observe: Sequence[Observe] = ()
) -> tuple[State, Message, list[Message]]:
    """Run every phase of a round.

    Returns:
        The state at the start of the last phase, the message to merge, and the messages sent in each phase.
    """
    plan, sent = job.plan, []
    for phase in method.phases:
        releases = [r for r in pricing.declared(method, plan, state.round, state) if r.phase == phase]
        sent.append(job.federation.ask(phase, state, cohort))
        faults.point("trained")
        arrived = plan.channel.carry(sent[-1], rng.at("channel", phase))
        shown(observe, View("server", state.round + 1, phase, state, tuple(cohort), arrived))
        if observe and (colluders := trust.viewer(job.viewer).colluders):
            honest = _without(sent[-1], plan.population - colluders)
            unknown = plan.channel.carry(honest, rng.at("channel", phase))
            shown(observe, View(job.viewer, state.round + 1, phase, state, tuple(cohort), unknown))
        late, dtype = plan.stragglers.late > 0, state.params.dtype
        merged = plan.robust(arrived) if phase == method.phases[-1] else arrived
        seen = received(merged, releases, state.round, rng, job.rng, late, dtype)
        if phase != method.phases[-1]:
            paid, done = pricing.costs(method, plan, state.round, state), state.round
            state = replace(method.between(phase, state, seen, plan), round=done)
            if pricing.costs(method, plan, done, state) != paid:
                raise RunError(
                    f"{job.spec.method}: after the phase {phase}, the cost of the round differs from what was paid. "
                    "The bound of a release may depend on what was released before; its mechanism may not."
                )
    return state, seen, sent


def _without(sent: Message, first: int) -> Message:
    """Return a message without the rows of the clients from `first` on, who collude with the server and know them."""
    return sent if sent.ids is None else sent.pick(torch.from_numpy(sent.ids < first))


def _as_priced(job: Job, method: Method, now: Costs, state: State) -> None:
    """Raise RunError if the releases of a round, given the state, differ from those that the plan was priced with."""
    if job.whole_costs is None:
        if now != job.by_round[state.round]:
            raise RunError(
                f"{job.spec.method}.releases: the cost of round {state.round + 1} depends on the state, which is "
                "allowed only if the releases declare a `total` for the run. Otherwise only bounds may depend on what "
                "was released; the noise must follow from the plan."
            )
        return
    first = pricing.declared(method, job.plan)[0].total
    if any(r.total != first for r in pricing.declared(method, job.plan, state.round, state) if not r.onto):
        raise RunError(
            f"{job.spec.method}.releases: round {state.round + 1} has a release outside the total of the run."
        )


def _clip(state: State) -> float | None:
    """Return the clip bound in the method's state at the start of a round; None if the state holds none."""
    clip = getattr(state.method, "clip", None)
    return None if clip is None else float(clip)


def _injected(decided: dict[str, Any] | None) -> float | None:
    """Return the standard deviation of the noise that the method reports after a round; see `Method.decided`."""
    std = (decided or {}).get("std")
    return float(std) if isinstance(std, int | float) and not isinstance(std, bool) else None


def complete(job: Job, folder: RunFolder, ledger: Account, state: State, done: int) -> None:
    """Bring the records of a resumed run up to its checkpoint; a crash may have happened between the two writes."""
    history, owners = folder.records(until=done), folder.owner_records(until=done)
    if not done or (history and history[-1].round == done):
        return
    known = owners[-1].round == done if owners else False
    lost = owners.pop() if known else OwnerRecord(done, len(ledger.last_cohort()), 0, 0, 0.0)
    folder.owner_records(until=done - 1)
    folder.append(_lost_record(job, ledger, state, done), lost)


def _lost_record(job: Job, ledger: Account, state: State, done: int) -> RoundRecord:
    """Return the record of a round whose checkpoint was written but whose record was not.

    Held-out records are not evaluated again with fresh noise."""
    scores = evaluate(job, state.model, done) if _due(job, done) and job.spec.mode == "research" else {}
    return RoundRecord(done, spent(job, ledger.charged, not _goes_on(job, ledger, done)), **scores)


def _save(job: Job, folder: RunFolder, ledger: Account, state: State, done: int) -> None:
    job.federation.save(done)
    faults.point("stored")
    folder.save_state(state, done)
    faults.point("noting")
    folder.note_ledger(ledger.head())


def _draw(job: Job, ledger: Account, done: int) -> Ints:
    paid = ledger.repeats(done)
    if paid is not None:
        return paid
    plan = job.plan
    drawn = plan.sampler.draw(plan.population, job.rng.at("round", done).at("sample"))
    return ledger.free(plan.stragglers.there(drawn, plan.population, done))


def _average(job: Job, state: State) -> State:
    """Update the average of the models, which is post-processing and costs nothing, after `state.round` earlier rounds.

    tail: the mean of the last rounds (Polyak and Juditsky 1992); ema: decay d, short at first as min(d, (t+1)/(t+10));
    polynomial: round t weighs in proportion to t^p (Shamir and Zhang 2013, arXiv:1212.1824, Section 4)."""
    kind, value = job.spec.average()
    if kind == "none":
        return state
    t = state.round
    if kind == "tail":
        weight = 1 / max(1, t + 1 - int((1 - value) * job.plan.rounds))
    elif kind == "ema":
        weight = 1 - min(value, (t + 1) / (t + 10))
    else:
        weight = (value + 1) / (t + 1 + value)
    before = state.params if state.average is None else state.average
    return replace(state, average=before + weight * (state.params - before))


def spent(job: Job, rounds: int, last: bool) -> dict[str, float]:
    """Return epsilon so far, against every viewer, by the plan; on the way by a coarser (still sound) grid.

    An evaluation that is made once, after the last round, counts from then on."""
    out, evaluated = {}, last or job.evaluation.times != 1 or job.may_end
    for viewer in job.viewers:
        now = job.guarantee(viewer, rounds, job.planned(rounds), rough=not last, evaluated=evaluated)
        out[viewer] = now.epsilon
        if not last and viewer == job.viewer:  # no more was released than planned, so the promise is a bound too
            out[viewer] = min(now.epsilon, job.promise.epsilon)
    return out


def _goes_on(job: Job, ledger: Account, done: int) -> bool:
    """Whether there is another round, and the budget for it."""
    return done < job.plan.rounds and (ledger.charged < ledger.rounds or ledger.repeats(done) is not None)


def _can_evaluate(job: Job) -> bool:
    return job.test is not None or job.held_out is not None


def _due(job: Job, done: int) -> bool:
    return _can_evaluate(job) and (done % job.evaluation.every == 0 or done == job.plan.rounds)


def evaluate(job: Job, params: Vector, done: int = 0, each: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return loss and metrics on the public test data, or noisy metrics, which are charged, on held-out records.

    Args:
        job: the job.
        params: the model.
        done: the number of rounds so far.
        each: is filled with the figures of single clients on public test data, for the owner.
    """
    module = trained(job, params).eval()
    if job.held_out is not None:
        return _on_held_out(job, params, done)
    if job.test is None:
        return {}
    (x, y), owners, own = job.test, job.test_clients, job.own_metric
    meter, total, outputs = Meter(job.task, None, owners is not None), 0.0, []
    with torch.inference_mode():
        for i in range(0, len(y), RECORDS):
            out = module(x[i : i + RECORDS])
            total += float(job.model.loss(out, y[i : i + RECORDS]).sum())
            meter.add(out, y[i : i + RECORDS], None if owners is None else torch.from_numpy(owners[i : i + RECORDS]))
            outputs += [] if own is None else [out]
    figures = meter.result()
    scores: dict[str, Any] = {"loss": total / len(y), "evaluated_on": PUBLIC, "accuracy": figures.pop("accuracy", None)}
    if own is not None:
        figures[own.name] = own.value(torch.cat(outputs), y)
    if each is not None and 1 < len(by_client := meter.clients()) <= CLIENTS:
        each |= {"metric": meter.compared(), "clients": {str(i): list(pair) for i, pair in by_client.items()}}
    return scores | {"metrics": figures, "confusion": meter.confusion()}


def _on_held_out(job: Job, params: Vector, done: int) -> dict[str, Any]:
    """Return the figures on held-out units, noisy where the method is private."""
    held, z = job.held_out, job.evaluation.noise if job.method.private else None
    if held is None:
        return {}
    unit, measure = job.plan.unit or job.method.units[0], job.evaluation.measure
    figure = Figure(unit, z, measure, central=job.method.viewer == "public")
    state = State(params, round=done)
    total = beside.released(job.federation, figure, job.model, job.plan, state, job.rng, held_out.HELD_OUT)["figure"]
    where, noisy = f"{held.kind} records", ""
    if z is not None and measure.cells == 1:
        noisy = f", with noise of deviation {held_out.deviation(held, z):.2g}, charged"
    elif z is not None:
        counts = f"{measure.cells} counts of {held.units} in all"
        noisy = f", with noise of deviation {held_out.deviation(held, z) * held.units:.2g} in each of {counts}, charged"
    return measure.figures(total[0], held.units) | {"evaluated_on": where + noisy}


def evaluate_own(job: Job, state: State) -> dict[str, float]:
    """Return the metrics of each client's personal model on its test data; only for methods without privacy."""
    if job.test is None or job.test_clients is None or not job.plan.algorithm.personal or job.method.private:
        return {}
    (x, y), meter = job.test, Meter(job.task, None, clients=True)
    for client, model in job.federation.personal(state).items():
        index = torch.from_numpy(np.flatnonzero(job.test_clients == client)).to(y.device)
        if len(index):
            module = trained(job, model).eval()
            with torch.inference_mode():
                meter.add(module(x[index]), y[index], torch.full((len(index),), client))
    return {f"personal_{name}": value for name, value in meter.result().items()}


def trained(job: Job, params: Vector) -> nn.Module:
    """Return a copy of the model with these parameters."""
    module = copy.deepcopy(job.model.module)
    job.model.layout.write(module, params)
    return module
