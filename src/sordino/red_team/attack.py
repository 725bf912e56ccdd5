"""Attack a finished run: every attack on what one viewer saw, with privacy and without, compared with the truth.

Everything here depends on private records. The figures, scores and pictures are the owner's and go to the private part
of the run folder, private/attacks, whatever the data are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino.attacks.base import INFERENCE, KINDS, MEMBERSHIP, Shadows, require
from sordino.core import check, plugin
from sordino.core.errors import SordinoError, SpecError
from sordino.privacy.guarantee import Guarantee
from sordino.red_team import attack_files, case, measure, measure_answers, measure_records, words
from sordino.red_team.active_round import with_active_server
from sordino.red_team.case import AttackCase
from sordino.red_team.measure import Answer
from sordino.red_team.twin import Step, without_privacy
from sordino.red_team.words import AttackFigure
from sordino.run_folder.folder import RunFolder
from sordino.runs import shadows as train
from sordino.runs.job import Job

SHADOWS, VICTIMS = 64, 4
RATE = 0.01  # false positive rate at which a sentence says what a guarantee allows
Options = Mapping[str, Mapping[str, Any]]  # by attack: values of its fields


@dataclass(frozen=True)
class AttackOutcome:
    """What one attack found of a run."""

    attack: str
    kind: str
    view: str
    figures: tuple[AttackFigure, ...]  # of the run
    twin: tuple[AttackFigure, ...]  # of the same run without privacy; empty if it was not trained
    sentence: str  # what was found, in words
    limit: str | None = None  # what the guarantee allows at most, in words
    warning: str | None = None  # if the attack found more than that
    note: str | None = None  # why there are no figures without privacy, if the attack failed there
    files: tuple[str, ...] = ()

    def rows(self, private: bool) -> list[dict[str, Any]]:
        """Return the rows of the table; `private` says whether the run itself has any privacy."""
        beside = {f.metric: f for f in self.twin}
        out = []
        for figure in self.figures:
            plain = beside.get(figure.metric) if private else figure
            row: dict[str, Any] = {
                "attack": self.attack,
                "view": self.view,
                "metric": figure.metric,
                "unit": figure.unit,
            }
            row |= {"with_dp": figure.to_json() if private else None, "chance": figure.chance}
            out.append(row | {"without_dp": None if plain is None else plain.to_json()})
        return out


@dataclass(frozen=True)
class AttackReport:
    """What attacks found of a run. It belongs to the owner of the data, unless these are public."""

    folder: Path
    public_data: bool
    private: bool  # whether the run has a method that protects anyone
    outcomes: tuple[AttackOutcome, ...]

    @property
    def violated(self) -> bool:
        """Whether some attack found more than the guarantee allows."""
        return any(outcome.warning for outcome in self.outcomes)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, in words, and then what the guarantees allow."""
        found = [f"{outcome.attack}: {outcome.sentence}" for outcome in self.outcomes]
        found += [outcome.note for outcome in self.outcomes if outcome.note]
        return (*found, *dict.fromkeys(outcome.limit for outcome in self.outcomes if outcome.limit))

    def to_json(self) -> dict[str, Any]:
        """Return everything as one object."""
        return {
            "for": "anyone" if self.public_data else "owner",
            "run": str(self.folder),
            "rows": [row for outcome in self.outcomes for row in outcome.rows(self.private)],
            "sentences": list(self.sentences),
            "violated": self.violated,
            "warnings": [o.warning for o in self.outcomes if o.warning],
            "files": [name for outcome in self.outcomes for name in outcome.files],
        }


@dataclass(frozen=True)
class AttackSettings:
    """How a run is attacked."""

    view: str | None = None
    records: int | None = None
    shadows: int | None = None
    victims: int = VICTIMS
    attribute: str | None = None
    active: bool = False
    seed: int = 0
    baseline: bool = True

    def __post_init__(self) -> None:
        check.count(victims=self.victims)
        check.non_negative(seed=self.seed)
        check.count(**{k: v for k in ("records", "shadows") if (v := getattr(self, k)) is not None})

    def trains_shadows(self, attack: Any) -> bool:
        """Return whether shadow models are trained for an attack: if it needs them, or the caller gave a number."""
        return "shadows" in attack.needs or (self.shadows is not None and attack.kind == MEMBERSHIP)


def attack(
    run: Any,
    attacks: str | Sequence[Any],
    view: str | None = None,
    *,
    records: int | None = None,
    shadows: int | None = None,
    victims: int = VICTIMS,
    attribute: str | None = None,
    active: bool = False,
    seed: int = 0,
    baseline: bool = True,
    model: Any = None,
    clients: Any = None,
    loss: Any = None,
    test: Any = None,
    step: Step | None = None,
) -> AttackReport:
    """Attack a finished run and compare what is found with the truth.

    run       a run folder, or what `sordino.train` returned; record_views = True stores what the server saw
    attacks   names of attacks ("loss-threshold,lira"), or attack objects with options of their own
    view      whose views are attacked: public, client, wire:K, server or server+N (default: the usual one of an attack)
    records   members among the records that are asked for, and as many others (default: 1000, at most half of the
              test records)
    shadows   number of shadow models (default: 64, for attacks that need them); a number is for all membership attacks
    victims   clients whose records are reconstructed
    attribute the column of a table that attribute inference must guess
    active    let the server send a model of its choice in one more round, and attack the answers to it
    seed      of the sample and of the attackers
    baseline  also attack the same run without privacy, which is trained for this and deleted
    model, clients, loss, test   as they were passed to `sordino.train`, if the run was started from Python
    step      called with what is being done, how much of it is done, and of how much

    The report, and all files in private/attacks, belong to the owner of the data.
    """
    settings = AttackSettings(view, records, shadows, victims, attribute, active, seed, baseline)
    chosen = made(attacks)
    path = Path(getattr(run, "folder", run))
    tell: Step = step or (lambda what, done, of: None)
    tell("preparing data and model", 0, 1)
    job = case.opened(path, model, clients, loss, test)
    folder = RunFolder(path)
    folder.lock()
    try:
        outcomes = _outcomes(path, job, chosen, settings, tell)
    finally:
        folder.close()
        job.federation.close()
    return AttackReport(path, job.public_data, job.method.private, outcomes)


def made(attacks: str | Sequence[Any], options: Options | None = None) -> list[Any]:
    """Return attack objects for names, with options where there are any; objects are returned as they are."""
    names = [n.strip() for n in attacks.split(",")] if isinstance(attacks, str) else list(attacks)
    if not names:
        raise SpecError("name at least one attack.")
    options = options or {}
    out = [n if not isinstance(n, str) else loaded(n)(**options.get(n.replace("_", "-"), {})) for n in names]
    for one in out:
        if getattr(one, "kind", None) not in KINDS:
            raise SpecError(f"{one!r} is not an attack: its kind must be one of {', '.join(KINDS)}.")
    return out


def loaded(name: str) -> Any:
    """Return the class of an attack by its name, which may be written with _ or -."""
    return plugin.load("attacks", name.replace("_", "-"))


def option(name: str, key: str) -> Any:
    """Return the field of an attack that an option sets; raise SpecError with the nearest one if there is none."""
    cls = loaded(name)
    known = {f.name: f for f in fields(cls)} if is_dataclass(cls) else {}
    field = known.get(key.replace("-", "_"))
    if field is None:
        near = get_close_matches(key, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"{name} has no option {key!r}.{hint} It has: {', '.join(known) or 'none'}.")
    return field


def _outcomes(
    path: Path, job: Job, attacks: Sequence[Any], settings: AttackSettings, step: Step
) -> tuple[AttackOutcome, ...]:
    viewers = [settings.view or usual_view(one) for one in attacks]
    cases = _cases(path, job, viewers, settings)
    for one, viewer in zip(attacks, viewers, strict=True):
        _require(one, cases[viewer], settings)
    place = RunFolder(path).private / attack_files.FOLDER
    place.mkdir(mode=0o700, exist_ok=True)
    answers = [_answer(one, cases[viewer], settings, place, step) for one, viewer in zip(attacks, viewers, strict=True)]
    plain: list[Answer | str | None] = [None] * len(attacks)
    if settings.baseline and job.method.private:
        with without_privacy(place, job, step) as (twin_path, twin):
            others = _cases(twin_path, twin, viewers, settings)
            keep = place if job.public_data else twin_path  # unprotected models of private records are deleted too
            for number, (one, viewer) in enumerate(zip(attacks, viewers, strict=True)):
                try:
                    plain[number] = _answer(one, others[viewer], settings, keep, step)
                except SordinoError as error:  # what was found of the run itself is not lost
                    plain[number] = f"{one.name} fails on the run without privacy: {error}"
    promises = {viewer: case.guarantee(job, viewer) for viewer in dict.fromkeys(viewers)}
    together = zip(attacks, viewers, answers, plain, strict=True)
    return tuple(_told(path, one, v, answer, twin, promises[v]) for one, v, answer, twin in together)


def usual_view(attack: Any) -> str:
    """Return the viewer that an attack is usually made by."""
    first: str = attack.sees[0]
    return "wire:0" if first == "wire" else first


def _cases(path: Path, job: Job, viewers: Sequence[str], settings: AttackSettings) -> dict[str, AttackCase]:
    cases = {v: case.of_run(path, job, v, settings.records, settings.seed) for v in dict.fromkeys(viewers)}
    return {v: with_active_server(c) for v, c in cases.items()} if settings.active else cases


def _require(attack: Any, where: AttackCase, settings: AttackSettings) -> None:
    """Raise SpecError before any training if an attack cannot be made."""
    pool, none = where.targets.batch, np.zeros((0, len(where.members)), dtype=np.bool_)
    known = replace(where.knowledge, shadows=Shadows(pool, torch.zeros(0), none))
    require(attack, where.views, known)
    if settings.trains_shadows(attack):
        train.require(where.job)
    if attack.kind == INFERENCE and not measure_answers.asks_for_property(attack):
        measure_answers.hidden_column(where, settings.attribute)


def _answer(attack: Any, where: AttackCase, settings: AttackSettings, keep: Path, step: Step) -> Answer:
    """Return what an attack finds of a case."""
    knowledge = where.knowledge
    if settings.trains_shadows(attack):
        knowledge = replace(knowledge, shadows=_shadows(where, settings, keep, step))
    step(f"{attack.name} by {words.who(where.viewer)}", 0, 1)
    if attack.kind == MEMBERSHIP:
        return measure.membership(attack, where, knowledge)
    if attack.kind == INFERENCE:
        return measure_answers.inference(attack, where, knowledge, settings.attribute)
    return measure_records.reconstruction(attack, where, knowledge, settings.victims, step)


def _shadows(where: AttackCase, settings: AttackSettings, keep: Path, step: Step) -> Shadows:
    """Return shadow models whose pool are the targets; their clients are as large as those of the run."""
    pool, plan = where.targets.batch, where.job.plan
    clients = max(1, min(plan.population, round(len(pool.y) / 2 / max(1.0, plan.mean_client))))
    trained = train.train_shadows(
        where.job,
        pool,
        settings.shadows or SHADOWS,
        settings.seed,
        clients=clients,
        progress=lambda done, of: step("training shadow models", done, of),
        folder=keep / "shadows",
    )
    return Shadows(trained.pool, trained.params, trained.members)


def _told(
    path: Path, attack: Any, viewer: str, answer: Answer, plain: Answer | str | None, promise: Guarantee
) -> AttackOutcome:
    """Put what was found into words and files."""
    twin, note = (plain, None) if isinstance(plain, Answer) else (None, plain)
    beside = () if twin is None else twin.figures
    epsilon, delta = case.allowed(promise)
    limit, warning = None, None
    if attack.kind == INFERENCE:
        sentence = words.inferred(viewer, answer.what, answer.figures, beside)
    elif attack.kind != MEMBERSHIP:
        sentence = words.reconstructed(viewer, answer.figures, beside)
    else:
        sentence = words.found(viewer, answer.figures, beside)
        if math.isfinite(epsilon):
            limit = words.most_allowed(promise, epsilon, delta, RATE)
        if (bound := measure.beyond(answer, epsilon, delta)) is not None:
            warning = words.violated(attack.name, viewer, bound, epsilon)
    outcome = AttackOutcome(attack.name, attack.kind, viewer, answer.figures, beside, sentence, limit, warning, note)
    return attack_files.write(path, attack, outcome, answer, twin, (epsilon, delta))
