"""What the guarantee of a run does not cover: each topic only where the records show that it concerns this run."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sordino.privacy.guarantee import Guarantee
from sordino.report.run.fields import RunSources
from sordino.report.run.guarantee_words import Statement
from sordino.report.run.words import capital, joined, number_of

TAKEN = 12  # things that were taken as public that are listed
HIDDEN_DRAW = ("public", "client")  # viewers who do not see who takes part


def not_covered(run: RunSources, said: Statement) -> tuple[tuple[str, str], ...]:
    """Return topics with a sentence on each; () where nothing is promised anyway."""
    if not said.finite:
        return ()
    return tuple(_topics(run, said, said.finite[0]))


def _topics(run: RunSources, said: Statement, main: Guarantee) -> Iterator[tuple[str, str]]:
    public_data = bool(run.plan.flag("public_data"))
    if main.mode == "research":
        told = ", which spec.toml states" if run.spec.has("seed") else ""
        yield (
            "Seeded noise",
            f"The noise came from a seed{told}: this is an experiment, void against anyone who knows the seed.",
        )
    if main.exact:
        yield "Arithmetic", "The noise is exact, on a lattice; the arithmetic before the clip is not part of the proof."
    else:
        yield "Floating point", "Noise and sums are computed in floating point, whose rounding no proof covers."
    if main.public:
        more = f" and {len(main.public) - TAKEN} more" if len(main.public) > TAKEN else ""
        yield "Taken as public", capital(f"{'; '.join(main.public[:TAKEN])}{more}.")
    yield from _of_labels(run, main, public_data)
    yield from _of_metrics(run)
    yield (
        "Preparation",
        "Nothing is counted that was done to the records before they were read, such as selecting people.",
    )
    if main.unit in ("record", "label"):
        yield "Several records", "Somebody with several records is protected less, the more records there are."
    yield from _of_draws(run, said)
    yield from _of_collusion(said)
    if not public_data:
        yield (
            "Other uses",
            "Releases of these people's data that were not charged to the ledger of this run are not counted.",
        )
    if plugins := list(run.seal.part("plugins").names()):
        yield (
            "Plug-ins",
            f"The code of {joined(plugins[:5])} is not Sordino's; it is taken to do what it declares.",
        )
    if run.spec.text("federation") == "flower":
        yield (
            "Other programs",
            "The bound is that of the code named below; whether every site ran it, nothing here shows.",
        )
    yield (
        "Side channels",
        "How long computing takes, and what a network or a machine shows of it, is not part of the bound.",
    )


def _of_labels(run: RunSources, main: Guarantee, public_data: bool) -> Iterator[tuple[str, str]]:
    names = run.inputs.texts("class_names")
    if main.unit == "label":
        yield "Other columns", "The label of a record is protected; everything else in the record is not."
    elif names and not public_data:
        yield "Labels", f"The names of the {number_of(len(names), 'class').replace('classs', 'classes')} are public."


def _of_metrics(run: RunSources) -> Iterator[tuple[str, str]]:
    if "public" in run.plan.text("evaluated_on"):
        yield "Metrics", "Accuracy and loss were measured on public test records, which are not protected."
    if run.baseline and not run.plan.flag("public_data"):
        yield "Comparison", "The figures without privacy come from a model that was trained without noise."


def _of_draws(run: RunSources, said: Statement) -> Iterator[tuple[str, str]]:
    cohort, clients = run.plan.number("expected_cohort", 0.0), run.plan.number("clients", 0.0)
    hidden = [g for g in said.finite if g.viewer in HIDDEN_DRAW]
    seen = next((g for g in said.viewers if g.viewer.startswith("server")), None)
    if not hidden or cohort is None or clients is None or cohort >= clients:
        return
    least = max(g.epsilon for g in hidden)
    if seen is not None and seen.epsilon > least and math.isfinite(seen.epsilon):
        yield "Who took part", "Has to stay secret: against whoever learns it, only the bound for the server holds."
    elif seen is None or math.isinf(seen.epsilon):
        yield "Who took part", "Has to stay secret: the bound counts on it that nobody tells who was drawn."


def _of_collusion(said: Statement) -> Iterator[tuple[str, str]]:
    for g in said.finite:
        kind, _, colluders = g.viewer.partition("+")
        if kind != "server" or g.channel == "direct":
            continue
        how_many = f"more than {colluders} clients" if colluders else "clients"
        yield (
            "Collusion",
            f"The bound does not hold if the server conspires with {how_many}, whose share of the noise it then knows.",
        )
        return
