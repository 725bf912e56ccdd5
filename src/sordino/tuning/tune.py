"""Tune: price a search, charge it as one job, run its trials, and publish the winner and nothing else.

    OUT/NAME/public            a run folder like any other, of the winner (with --disjoint: of the final run), whose
                               guarantee is that of the whole search; tune.json says what was searched and what it cost
    OUT/NAME/private           the owner's: tune.json (the trials as drawn), trials.json (their scores), trials.png,
                               trials/NNNN (one run folder each), final, rounds.sqlite, notes.txt

A search that was interrupted goes on when it is started again with the same name, and charges nothing twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError, SpecError
from sordino.core.parts import PRIVATE, locate
from sordino.core.rng import Stream
from sordino.ledger.ledger import Charge, Ledger
from sordino.privacy import selection
from sordino.report import figures
from sordino.report import trials as picture
from sordino.run_folder.folder import RunFolder
from sordino.run_folder.seal import write_seal
from sordino.runs import paying
from sordino.runs.fingerprint import fingerprints
from sordino.runs.head import absolute
from sordino.runs.identity import Whose
from sordino.runs.run import to_owner
from sordino.spec import spec
from sordino.tuning import publish, space
from sordino.tuning.space import SearchRange
from sordino.tuning.total import PricedSearch
from sordino.tuning.trials import Scored, TuningTrial, best, run_all, train

TUNE, TRIALS = "tune.json", "trials.json"
Tell = Callable[[Scored, int], None]  # called after every trial with it and with the number of all trials


def open_folder(plan: PricedSearch) -> RunFolder:
    """Open a new folder, or the one in which the same search was begun; it is locked until closed."""
    wanted = plan.search.spec
    path = Path(wanted.out) / wanted.name if wanted.name is not None else None
    if path is None or not path.exists():
        folder = RunFolder.create(wanted.out, wanted.name)
    elif locate(path, PRIVATE, TUNE).is_file():
        folder = RunFolder(path)
        if _asked(plan) != (begun := folder.read_json(TUNE)).get("asked"):
            raise RunError(f"{path} holds another search ({_difference(begun, plan)}). Choose another name.")
    elif path.is_dir() and not any((path / part).glob("*.json") for part in ("public", "private")):
        folder = RunFolder(path)  # an earlier start died immediately
    else:
        raise RunError(f"{path} exists, but holds no search. Choose another name.")
    folder.lock()
    return folder


def _asked(plan: PricedSearch) -> dict[str, Any]:
    """Return what identifies a search: what is asked for, the epsilon of a trial, and the digest of the data."""
    asked = plan.search.to_json() | {"budget": plan.budget, "data": fingerprints(plan.job.owner.brought)[1]}
    return dict(json.loads(json.dumps(asked)))


def _difference(begun: Any, plan: PricedSearch) -> str:
    try:
        old, new = begun["asked"], _asked(plan)
        if old["spec"] != new["spec"]:
            keys = sorted({*old["spec"], *new["spec"]})
            key = next(k for k in keys if old["spec"].get(k) != new["spec"].get(k))
            return f"{key} = {old['spec'].get(key)}, not {new['spec'].get(key)}"
        key = next(k for k in new if old.get(k) != new[k])
        return "of other data" if key == "data" else f"{key} = {old.get(key)}, not {new[key]}"
    except (KeyError, TypeError, StopIteration, AttributeError):
        return f"its {TUNE} is damaged"


def charge_of(plan: PricedSearch) -> Charge:
    """Return the charge of the whole search."""
    return Charge(plan.cost, plan.epsilon, plan.search.spec.delta)


def afford(plan: PricedSearch) -> Whose:
    """Raise BudgetError if the budgets of the data cannot pay for the search; return whose data they are."""
    whose = paying.whose_data(plan.job, fingerprints(plan.job.owner.brought)[1], None)
    path = paying.ledger_path(plan.job)
    if path.is_file():
        with Ledger(path) as book:
            book.check(whose.name, charge_of(plan), units=whose.units)
    return whose


def _charge(folder: RunFolder, plan: PricedSearch, whose: Whose) -> str | None:
    """Charge the whole search to the ledger as one job; the second time nothing is charged.

    Returns:
        What all jobs under the name of the data promise together; None for data without a name.
    """
    if not (folder.private / "ledger.json").is_file():
        named = plan.search.spec.ledger
        path = None if named is None else os.path.relpath(paying.ledger_path(plan.job), folder.path.absolute())
        fresh = {"path": path, "job": os.urandom(8).hex(), "data": whose.public_name, "entries": 0, "head": ""}
        folder.write_json("ledger.json", fresh)
    with paying.opened(folder) as book:
        account = book.open_job(
            str(folder.read_json("ledger.json")["job"]),
            whose.name,
            charge_of(plan),
            rounds=1,
            participations=1,
            repeatable=True,
            units=whose.units,
            purpose=f"tune {plan.search.spec.method}",
            run=folder.path.name,
            mode=plan.job.mode,
        )
        folder.note_ledger(account.head())
        together = book.together(account.job)
    for text in account.owner_notes:
        folder.tell_owner(text)
        to_owner(text)
    return together


def _drawn(folder: RunFolder, plan: PricedSearch) -> list[TuningTrial]:
    """Return the trials, drawn once and for all: their number by the law of the search, their settings by its space."""
    known = folder.read_json(TUNE)
    if "drawn" not in known:
        search, secure = plan.search, plan.job.mode == "secure"
        rng = Stream.operating_system() if secure else Stream.research(search.spec.seed or 0).at("tune")
        number = search.trials
        if search.disjoint is None:
            number = selection.draw(float(rng.at("number").uniform(1)[0]), search.trials, search.law, search.eta)
        streams = [rng.at("trial", i) for i in range(number)]
        known["drawn"] = [
            {"number": i, "settings": space.draw(search.space, s), "seed": None if secure else s.integer()}
            for i, s in enumerate(streams)
        ]
        folder.write_json(TUNE, known)
    return [TuningTrial(**entry) for entry in known["drawn"]]


def execute(folder: RunFolder, plan: PricedSearch, whose: Whose, processes: int, tell: Tell) -> dict[str, Any]:
    """Charge the search, run its trials and publish the winner; return what the public part says of it.

    Args:
        folder: the folder of the search, open and locked.
        plan: the priced search.
        whose: whose data they are.
        processes: the number of trials that run at the same time.
        tell: called after every trial, for the owner alone.
    """
    if not (folder.private / TUNE).is_file():
        folder.write_json(TUNE, {"asked": _asked(plan)})
    together = _charge(folder, plan, whose)
    trials = _drawn(folder, plan)
    path, search = folder.path.absolute(), plan.search
    scored = run_all(path, search, plan.budget, trials, processes, lambda s: tell(s, len(trials)))
    for_owner = [{"settings": s.trial.settings, "score": s.score if math.isfinite(s.score) else None} for s in scored]
    folder.write_json(TRIALS, for_owner)
    _draw_picture(folder, plan, [s for s in scored if math.isfinite(s.score)])
    winner = best(scored)
    if winner is None:
        raise RunError(
            "the law drew no trial at all, so there is no winner, and the search stays charged. This happens with "
            f"probability {math.exp(-search.trials):.1g}; use --law geometric, which draws at least one."
        )
    if search.disjoint is not None:
        train(path, search.final(winner.trial.settings), path / PRIVATE / "final")
    told = publish.winner(folder, plan, winner, together)
    write_seal(folder, folder.read_json("ledger.json"))
    return told


def _draw_picture(folder: RunFolder, plan: PricedSearch, scored: list[Scored]) -> None:
    if scored and figures.ready():
        logarithmic = [k for k, d in plan.search.space.items() if isinstance(d, SearchRange) and d.log]
        settings, scores = [s.trial.settings for s in scored], [s.score for s in scored]
        picture.draw(folder.private / "trials.png", settings, scores, logarithmic)


def settled(wanted: spec.Spec, disjoint: float | None) -> spec.Spec:
    """Return the spec of a search: with absolute paths, and against those who see the winner by random stopping."""
    keys = wanted.to_dict()
    if disjoint is None and wanted.viewer is None:
        keys["viewer"] = "public"
    elif disjoint is not None and not 0 < disjoint < 1:
        raise SpecError(f"disjoint must be a share of the records between 0 and 1, not {disjoint:g}.")
    return absolute(spec.from_dict(keys))
