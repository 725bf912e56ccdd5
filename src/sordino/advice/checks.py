"""The rules of `sordino check`, which tests whether a configuration is private at all.

Each rule is a small function that reads a Case and yields findings. To add a rule, write a function and list it in
RULES. A finding has a severity (broken: no meaningful guarantee; weak: less private than it seems; note: good to know)
and says what was found, why it matters and how to fix it.

The docstring of a rule says what it examines. `sordino check` prints these docstrings as a list, so each is a short
lower-case phrase without a full stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from sordino.advice import planner
from sordino.advice.case import Case, looks_fitted
from sordino.advice.finding import SEVERITIES, Finding
from sordino.advice.ledger_rules import ledger, spent_already, unnamed_data
from sordino.advice.public_rules import dealt_by_label, declared_public, no_evaluation, no_public_part, partly_public
from sordino.core import plugin
from sordino.core.errors import ModelError
from sordino.data.repeats import repeated
from sordino.privacy.algebra import non_private
from sordino.tasks.validate import fix, validate

GUESSED = 2**40  # seeds below this can be found by trying them all
LARGE = 10.0  # above this epsilon the guarantee means little


# --- the unit of privacy and the viewer


def no_noise(case: Case) -> Iterator[Finding]:
    """whether the method adds noise, and whether its privacy claim holds"""
    name = case.spec.method
    if (sound := name.removesuffix("-paper")) != name:
        way = sound if sound in plugin.available("methods") else "dp-sgd"
        what, why = f"{name} is as printed, and its claim does not hold", "the epsilon accounted for is often infinite"
        yield Finding("broken", what, why, f"use method = {way}")
    elif not case.method.private:
        why = "epsilon is infinite; epsilon and delta in the file have no effect"
        way = "use method = dp-sgd (protects records) or dp-fedavg (protects clients)"
        yield Finding("broken", f"method = {name} adds no noise", why, way)


def unprotected_viewer(case: Case) -> Iterator[Finding]:
    """whether the method protects against the viewer that the budget names, and against the server"""
    if not case.method.private:
        return
    reason = non_private(case.cost().event)
    if reason is not None:
        yield Finding(
            "broken",
            f"{case.spec.method} gives no guarantee against the {case.viewer}",
            f"epsilon is infinite: {reason}",
            f"use viewer = {case.method.viewer}, or method = dp-sgd, which adds the noise inside the clients",
        )
    elif not case.viewer.startswith("server") and (reason := non_private(case.cost("server").event)) is not None:
        yield Finding(
            "note",
            f"the budget holds against the {case.viewer}, not against the server",
            f"against the server epsilon is infinite: {reason}",
            "run the server where it is trusted, or use method = dp-sgd",
        )


def one_record_not_a_person(case: Case) -> Iterator[Finding]:
    """whether the guarantee covers a single record or a person"""
    if case.method.private and case.cost().unit == "record":
        yield Finding(
            "note",
            "the guarantee is about one record",
            "a person with k records has about k times the epsilon, and a client as a whole has no guarantee",
            "to protect a person, use unit = user with a user_column; to protect a client, use method = dp-fedavg",
        )


def made_up_clients(case: Case) -> Iterator[Finding]:
    """whether the clients come from the data or from an artificial partition"""
    if (
        case.method.private
        and case.data is not None
        and (case.data.client_train is None or not (case.spec.partition or "natural").startswith("natural"))
        and case.cost().unit == "client"
    ):
        yield Finding(
            "note",
            f"{case.data.name}: its records are split among {case.spec.clients} clients by "
            f"{case.spec.partition or 'iid'}",
            "the guarantee is about these made-up clients, not about people",
            "name the clients (client_column of a table, client_train in an .npz file) and use partition = natural",
        )


# --- epsilon, delta, seeds


def seeds(case: Case) -> Iterator[Finding]:
    """whether the noise comes from a seed, and whether that seed can be guessed"""
    if case.spec.mode != "research" or not case.method.private:
        return
    seed = case.spec.seed
    default = "drop mode and seed: for your own data the default is mode = secure"
    way = "use mode = secure and no seed" if case.public_data else default
    if seed is None or seed < GUESSED:
        text = "mode = research with the default seed 0" if seed is None else f"mode = research with seed = {seed}"
        yield Finding(
            "broken",
            text,
            "the seed is known or soon guessed, and whoever has it can subtract the noise: good for experiments only",
            way,
        )
    else:
        yield Finding(
            "weak",
            "mode = research: the noise comes from a seed",
            "the guarantee is void against whoever knows the seed, and the run folder holds it",
            way,
        )


def delta_too_large(case: Case) -> Iterator[Finding]:
    """whether delta is smaller than one over the number of protected records, clients or users"""
    units = case.units() if case.method.private else None
    if units is not None and case.spec.delta * units >= 1:
        yield Finding(
            "broken",
            f"delta = {case.spec.delta:g} with {units} {case.cost().unit}s",
            f"a mechanism that publishes one {case.cost().unit} in full satisfies any delta of 1/{units} or more",
            f"use delta well below {1 / units:.1g}, for example {0.1 / units:.0e}",
        )


def epsilon_large(case: Case) -> Iterator[Finding]:
    """whether epsilon is too large to be meaningful"""
    if case.method.private and case.spec.epsilon > LARGE:
        yield Finding(
            "weak",
            f"epsilon = {case.spec.epsilon:g}",
            "an attacker who starts with even odds may end up more than 99.99 % sure that someone took part",
            "use an epsilon of at most 10; `sordino plan` says what that needs",
        )


def float_noise(case: Case) -> Iterator[Finding]:
    """the limits of secure mode"""
    if case.spec.mode != "secure" or not case.method.private:
        return
    why = "the noise is drawn as floating point numbers" if case.job is None else case.job.doubt(case.job.viewer)
    if why is not None:
        yield Finding(
            "note",
            f"the randomness comes from the operating system, but {why}",
            "the proof is about real numbers and does not cover rounding (Mironov 2012)",
            "release only the model, not individual noisy values with all their digits",
        )


# --- the model


def layers(case: Case) -> Iterator[Finding]:
    """layers that mix records, running statistics, changing buffers and in-place activations"""
    if case.module is None or case.sample is None:
        return
    module = fix(case.module)[0] if case.spec.fix_model else case.module
    try:
        validate(module, case.sample)
    except ModelError as error:
        swaps = [] if case.spec.fix_model else fix(case.module)[1]
        text = f"fix_model = true would change {'; '.join(swaps)}" if swaps else "change the model"
        why = "what does not pass through the clip is released without noise, or no record can be clipped on its own"
        yield Finding("broken", str(error), why, text)


def kept_tensors(case: Case) -> Iterator[Finding]:
    """buffers, frozen parameters and scalar parameters"""
    if case.module is None:
        return
    frozen = [n for n, p in case.module.named_parameters() if not p.requires_grad]
    # layers of ours hold statistics that are noisy and charged
    foreign = [(n, m) for n, m in case.module.named_modules() if not type(m).__module__.startswith("sordino.")]
    buffers = [f"{n}.{name}".lstrip(".") for n, m in foreign for name, _ in m.named_buffers(recurse=False)]
    if still := frozen + buffers:
        yield Finding(
            "note",
            f"published as they are, never clipped or noised: {_names(still)}",
            "frozen parameters and buffers (whole numbers too) are part of the released model file",
            "make sure that they hold no statistics of private data",
        )
    if scalars := [n for n, p in case.module.named_parameters() if p.requires_grad and p.ndim == 0]:
        yield Finding(
            "note",
            f"scalar parameters: {_names(scalars)}",
            "they are clipped and noised here together with all others; some other frameworks skip them",
            "nothing to do here",
        )


# --- the data


def fitted_statistics(case: Case) -> Iterator[Finding]:
    """whether the training records look scaled by their own statistics (the built-in data use public constants)"""
    if case.data is not None and not case.public_data and case.method.private and looks_fitted(case.data.x_train):
        yield Finding(
            "weak",
            f"{case.data.name}: x_train has mean 0 and standard deviation 1, or range 0 to 1, to many digits",
            "it looks scaled by statistics of the training records themselves; these are private, not part of the "
            "budget, and every record depends on every other",
            "scale by public constants, or by statistics that were released with noise and charged",
        )


def metrics_in_clear(case: Case) -> Iterator[Finding]:
    """whether test records, whose metrics are published without noise, are also training records"""
    if case.data is None or not len(case.data.y_test):
        return
    both, often = repeated(case.data)
    test = len(case.data.y_test)
    words = case.data.test_from or f"the {test:,} test records"
    if both:
        chance = ", which may be chance: records repeat within the training data too" if often else ""
        yield Finding(
            "weak" if often and both < test / 2 else "broken",
            f"{both} of {test} test records are also training records{chance}",
            "loss and accuracy on the test records are published after every evaluation, without noise and uncharged",
            "test on records of people who are not in the training data",
        )
    elif not case.public_data:
        yield Finding(
            "note",
            f"loss and accuracy on test records are published without noise, and nobody is charged: {words}",
            "they are taken as public because the run file or the data say so",
            "if they are private, drop what declares them: other records are then held out and evaluated with noise",
        )


def baseline(case: Case) -> Iterator[Finding]:
    """whether a baseline without privacy is trained on the same data"""
    if case.spec.baseline and case.method.private:
        yield Finding(
            "note" if case.public_data else "broken",
            "baseline = true",
            "a second model is trained on the same data without any noise, and its accuracy and weights are written out"
            + ("; these data are public" if case.public_data else ": the run is refused"),
            "drop baseline" + ("" if case.public_data else ", and train with method = none in a run of its own"),
        )


def public_sizes(case: Case) -> Iterator[Finding]:
    """what is assumed to be public: client sizes, client weights and the number of classes"""
    cap = float(getattr(case.method, "weight_cap", 0.0))
    if cap:
        yield Finding(
            "note",
            f"clients have unequal weights: weight_cap = {cap:g}",
            "noise is scaled to the largest weight 1, so the guarantee holds for all; small clients count for less",
            "weight_cap = 0 gives all clients the same weight",
        )
    if case.job is not None and len(sizes := case.job.plan.sizes) > 1 and case.method.private:
        what = "users" if case.spec.unit == "user" and case.method.viewer == "server" else "records"
        yield Finding(
            "note",
            f"clients have {sizes[0]} to {sizes[-1]} {what}",
            f"how many {what} each client has, and how many classes there are, is taken as public",
            "if that is secret, cut all clients to the same size",
        )


def left_out(case: Case) -> Iterator[Finding]:
    """how many records and values are left out or changed before training"""
    for text in case.left_out:
        yield Finding(
            "note",
            text,
            "it happens before training, in every run; exact counts are for the owner of the data alone",
            "if you did not expect it, change the schema, the bounds or the data",
        )


def single_records(case: Case) -> Iterator[Finding]:
    """clients with a single record"""
    if case.job is not None and case.job.plan.smallest_client == 1 and case.cost().unit == "record":
        yield Finding(
            "note",
            "some clients have a single record",
            "such a client sends one clipped gradient under the whole noise: private, but next to nothing is learnt",
            "leave these clients out, or use method = dp-fedavg",
        )


# --- rounds, sampling, budgets


def draws(case: Case) -> Iterator[Finding]:
    """how clients and batches are sampled, and the neighbouring relation that follows"""
    if not case.method.private or case.cost().relation != "replace":
        return
    which = "client_sampling" if case.cost().unit == "client" else "batch_sampling"
    yield Finding(
        "note",
        f"{which} = fixed is priced in the replace-one relation, not add/remove",
        "this epsilon cannot be compared with one of the add/remove relation: replacing moves a sum by twice the clip",
        f"{which} = poisson uses the add/remove relation",
    )


def every_round_paid(case: Case) -> Iterator[Finding]:
    """whether clients are charged for more rounds than they take part in"""
    rate, rounds = case.spec.client_rate, case.spec.rounds
    if case.method.private and case.viewer.startswith("server") and rate < 1 and case.spec.max_participations is None:
        expected = rate * rounds
        cap = min(rounds, math.ceil(expected + 2 * math.sqrt(expected)))
        if cap < rounds:
            yield Finding(
                "note",
                f"client_rate = {rate:g} against the server, and no max_participations",
                f"the server sees who takes part, so the noise is set for a client in all {rounds} rounds, "
                f"although {expected:g} are expected",
                f"max_participations = {cap} needs less noise for the same epsilon",
            )


def usefulness(case: Case) -> Iterator[Finding]:
    """whether the model can learn under this much noise, according to the planner"""
    run_nsr, plan = case.nsr(), case.plan()
    unit = "record" if case.method.noisy_steps else "client"  # by where the noise is added, for users too
    if run_nsr is None or (says := planner.verdict(unit, run_nsr)) == "works":
        return
    yield Finding(
        "weak" if says == "hopeless" else "note",
        f"noise-to-signal ratio of the run {run_nsr:.2g} ({plan.expected_cohort:g} clients a round, noise multiplier "
        f"{plan.z:.3g}): {says}",
        "private, but on MNIST " + ("nothing was learnt" if says == "hopeless" else "some models lost a lot")
        + " under this noise",
        "`sordino plan` says how many clients, or which epsilon or unit, would do",
    )  # fmt: skip


def unseen_choices(case: Case) -> Iterator[Finding]:
    """how hyperparameters and model were chosen, which cannot be checked"""
    if case.method.private and not case.public_data:
        yield Finding(
            "note",
            "how learning rate, clip, rounds and model were chosen cannot be seen",
            "every trial on the same data costs privacy of its own",
            "choose on public data, or charge the trials to the same ledger",
        )


def cannot_start(case: Case) -> Iterator[Finding]:
    """whether the run would start at all"""
    findings = [
        f for rule in (unprotected_viewer, layers, dealt_by_label) for f in rule(case) if f.severity == "broken"
    ]
    if case.problem is not None and not findings:
        yield Finding(
            "broken", f"the run would not start: {case.problem}", "nothing would be trained", "do what the message says"
        )


Rule = Callable[[Case], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    no_noise, unprotected_viewer, one_record_not_a_person, made_up_clients, seeds, delta_too_large, epsilon_large,
    float_noise, layers, kept_tensors, fitted_statistics, metrics_in_clear, partly_public, declared_public,
    dealt_by_label, no_evaluation, baseline, public_sizes, left_out, single_records, draws, every_round_paid,
    ledger, unnamed_data, spent_already, no_public_part, usefulness, unseen_choices, cannot_start,
)  # fmt: skip


def check(case: Case) -> list[Finding]:
    """Apply all rules and return their findings, the worst first."""
    findings = [replace(f, rule=rule.__name__) for rule in RULES for f in rule(case)]
    return sorted(findings, key=lambda f: SEVERITIES.index(f.severity))


def looked_at() -> dict[str, str]:
    """Return what each rule examines, by the name of the rule."""
    return {rule.__name__: (rule.__doc__ or "").strip() for rule in RULES}


def _names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
