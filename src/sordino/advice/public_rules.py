"""Rules of `sordino check` about public data and published results; advice/checks.py explains how to write a rule."""

from __future__ import annotations

from collections.abc import Iterator

from sordino.advice.case import Case
from sordino.advice.finding import Finding
from sordino.runs.prepare import PrivateLabelError


def partly_public(case: Case) -> Iterator[Finding]:
    """whether protected users or clients also have records that count as public"""
    if case.data is None or case.public_data or not case.method.private or not len(case.data.y_test):
        return
    unit, data = case.cost().unit, case.data
    natural = (case.spec.partition or "natural").startswith("natural")
    sides = {"user": (data.user_train, data.user_test), "client": (data.client_train, data.client_test)}
    mine, shown = sides.get(unit, (None, None))
    if mine is None or (unit == "client" and not natural):
        return
    if shown is None:
        if unit == "user":
            yield Finding(
                "weak",
                f"the test records do not say which {unit} they belong to",
                f"a protected {unit} with some of them is partly public",
                f"name the {unit} of each test record too, or use records of people who are not in the training data",
            )
        return
    both = len(set(mine.tolist()) & set(shown.tolist()))
    if both:
        yield Finding(
            "broken",
            f"{both} of {len(set(mine.tolist()))} {unit}s have both test records, which are public, and private ones",
            f"the guarantee is about all records of a {unit}, but exact figures on some of them are published",
            f"split by whole {unit}s, or drop the test records and use public_share, which draws whole {unit}s",
        )


def declared_public(case: Case) -> Iterator[Finding]:
    """which of your own data the run file declares public"""
    if case.data is None or (case.spec.public_share is None and not case.spec.public_data):
        return
    if case.spec.public_data:
        what, why = (
            "public_data = true",
            "all records count as public: they may be split by label, and figures are exact",
        )
    else:
        what, why = (
            f"{case.data.test_from} are declared public",
            "exact figures on them are published, and nobody is charged",
        )
    yield Finding(
        "note", what, why, "make sure that the people they are about have agreed, or that they are already public"
    )


def dealt_by_label(case: Case) -> Iterator[Finding]:
    """whether private records are distributed to clients by label"""
    if isinstance(case.problem, PrivateLabelError):
        yield Finding(
            "broken",
            str(case.problem).partition(". ")[0],
            "removing or changing one record would change what many other clients hold, which no epsilon here covers",
            "use partition = iid, quantity or natural, or public_data = true if all records are already public",
        )


def no_evaluation(case: Case) -> Iterator[Finding]:
    """whether the run can evaluate its model"""
    if case.job is not None and case.job.evaluation.on is None and case.job.evaluation.text:
        text, _, way = case.job.evaluation.text.partition(". To have one, ")
        yield Finding("note", text, "the model is trained, but nothing says how good it is", way)


def no_public_part(case: Case) -> Iterator[Finding]:
    """whether the files of an earlier run leak information about the secret sampling of clients"""
    if case.flat and case.method.private and case.spec.client_rate < 1:
        yield Finding(
            "weak",
            "this run folder has no public part: its records hold cohort sizes, bytes and seconds",
            "for anyone who sees them the draw is no longer secret, and the epsilon printed for them is too small",
            "share only the model and result.json, or train again",
        )
