"""What a search publishes: its winner as a run folder, with the guarantee of the whole search.

Nothing here tells of the other trials: not their settings, not their scores, not their number.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sordino.core.parts import PRIVATE
from sordino.core.record import OwnerRecord, RoundRecord
from sordino.privacy.guarantee import Guarantee
from sordino.run_folder import boundary
from sordino.run_folder.folder import INPUTS, RunFolder
from sordino.runs.describe import describe
from sordino.runs.job import Job
from sordino.spec import spec, toml
from sordino.tuning.total import SERVER, PricedSearch
from sordino.tuning.trials import Scored, path_of

NOTE = "chosen by a search (tune.json); the guarantee is that of the whole search"


def winner(folder: RunFolder, plan: PricedSearch, chosen: Scored, together: str | None) -> dict[str, Any]:
    """Publish the winner, or the final run of a disjoint search, and return what tune.json says of it.

    Args:
        folder: the folder of the search.
        plan: the priced search.
        chosen: the best trial.
        together: what all jobs under the name of the data promise, by the user's ledger. What a trial says of it counts
            the trials, which are secret.
    """
    search = plan.search
    settings = chosen.trial.settings
    if search.disjoint is None:
        source, job = RunFolder(path_of(folder.path, chosen.trial)), search.trial(plan.budget, settings)
        guarantees = _guarantees(plan)
    else:
        source, job = RunFolder(folder.path / PRIVATE / "final"), search.final(settings)
        guarantees = {}
    _copy(source, folder, plan, job, settings, guarantees, together)
    about = _about(plan, chosen)
    folder.publish_json("tune.json", about)
    return about


def _guarantees(plan: PricedSearch) -> dict[str, Guarantee]:
    """Return the guarantees of random stopping: none against a server, which sees the trials."""
    total = plan.guarantee
    none = replace(total, epsilon=float("inf"), viewer="server", reason=SERVER, exact=False)
    return {"public": total, "server": none}


def _copy(
    source: RunFolder,
    folder: RunFolder,
    plan: PricedSearch,
    job: Job,
    settings: dict[str, Any],
    given: dict[str, Guarantee],
    together: str | None,
) -> None:
    """Write the files of a run to the public part; `given` replaces the guarantees of the run, if there are any."""
    full = plan.search.spec.to_dict() | settings
    if plan.search.disjoint is not None:
        full["tuning"] = plan.search.disjoint
    named = replace(job.spec, epsilon=plan.search.spec.epsilon, delta=plan.search.spec.delta)
    shown = boundary.public_spec(replace(named, seed=plan.search.spec.seed), job.public_data, False)
    boundary.check_fields("spec.toml", shown, boundary.options_of(named))
    result, derived = source.read_json("result.json", "public"), describe(job)
    if given:
        result["guarantee"] = derived["promise"] = given["public"].to_json()
        result["guarantees"] = {viewer: g.to_json() for viewer, g in given.items()}
    result |= {"notes": [*result["notes"], NOTE], "together": together}
    if (form := source.public / INPUTS).is_file():
        folder.publish_json(INPUTS, json.loads(form.read_text(encoding="utf-8")))
    folder.records(until=0), folder.owner_records(until=0)  # of an earlier attempt to publish
    owners = {record.round: record for record in source.owner_records()}
    for record in source.records():
        unknown = OwnerRecord(record.round, 0, 0, 0, 0.0)
        folder.append(_promised(record, given), owners.get(record.round, unknown))
    folder.write("spec.toml", _toml(spec.from_dict(full).to_dict()))
    folder.publish("spec.toml", _toml(shown))
    folder.publish("model.safetensors", (source.public / "model.safetensors").read_bytes())
    folder.publish_json("plan.json", derived)
    folder.publish_json("result.json", result)


def _promised(record: RoundRecord, given: dict[str, Guarantee]) -> RoundRecord:
    """Return the record with the total of the search as its epsilon: no round of a trial has a price of its own."""
    return replace(record, epsilon={"public": given["public"].epsilon}) if given else record


def _about(plan: PricedSearch, chosen: Scored) -> dict[str, Any]:
    search, random = plan.search, plan.search.disjoint is None
    return {
        "space": {key: domain.to_json() for key, domain in search.space.items()},
        "expected_trials": search.trials,
        "law": search.law if random else None,
        "eta": search.eta if random else None,
        "disjoint": search.disjoint,
        "trial_epsilon": plan.trial_epsilon,
        "total": {"epsilon": plan.epsilon, "delta": search.spec.delta},
        "settings": chosen.trial.settings,
        "score": chosen.score if abs(chosen.score) < float("inf") else None,
        "sentence": " ".join(plan.sentences()),
    }


def _toml(keys: dict[str, Any]) -> bytes:
    return ("\n".join(f"{k} = {toml.to_toml(v)}" for k, v in keys.items()) + "\n").encode()
