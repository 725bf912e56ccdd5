"""The table of everything that may leave a run: each file and field of the public part, with the reason.

Anything that is not in this table is not written: `check_fields` and `check_file` refuse it, so a new field is private
until somebody states here why it may be public. Standard output and `--json` obey the same table. If a name ends in
`.*`, its reason covers everything below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sordino.core import plugin
from sordino.core.errors import BoundaryError
from sordino.spec.spec import NAMED, Spec, plugin_fields

INPUT = "a public input: it was set before any private record was read"
ASSUMED = "taken as public, as the sentence of the guarantee says"
RELEASED = "released by the mechanism, and charged"
FIGURES = "computed on public test records, or on held-out ones with noise that is charged"
DERIVED = "computed from public inputs and from what was released"
SHAPE = "the shape of the model's input and output, which the model shows; what the labels are, as the sentence says"
DECLARED = "declared by the owner before the run, in a schema, in the spec or by the names of folders, or in the code"
HEADER = "declared in the schema; without one, taken as public, as the sentence says (the names of the columns)"
AUDITED = "computed from made-up records, or from what a viewer saw whom the guarantee names: post-processing of it"
PLANNED = "the bound that was planned: it does not depend on who was drawn"
COMMITTED = "a commitment under a secret random key of the run: without the key it tells nothing, and confirms no guess"

HIDDEN = (  # keys of a spec: paths on the owner's machine, the run's name, what the owner records
    "data_dir", "schema", "test", "name", "out", "ledger", "record_views", "initial_weights",
)  # fmt: skip
VALUES = {  # keys that hold either a value or a path, with the pattern of a value; paths are hidden
    "budgets": re.compile(r"[\d.eE+:,\s-]+\Z"),
    "private_data": re.compile(r"(label|feature):"),
}
OWN = "own-data"  # replaces the path of the owner's file if the data have no name in the ledger
PICTURES = ("accuracy", "rmse", "mae", "loss", "convergence", "noise", "claims")


def _of(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


GUARANTEE = "epsilon delta unit relation viewer rounds mode reason channel public exact infinite total sentence"


def _below(parent: str, names: str) -> str:
    return " ".join(f"{parent}.{name}" for name in names.split())


TABLE: dict[str, dict[str, str]] = {
    "spec.toml": _of(
        INPUT,
        "method algorithm epsilon delta unit viewer max_participations records_per_user clients_per_user budgets mode "
        "dataset data_name label_column client_column user_column split_column public_share public_data partition "
        "clients features standardise normalise feature_bound private_data without_private validation tuning "
        "server_data evaluate_on release_noise model fix_model initial_weights_from rounds client_sampling client_rate "
        "channel min_cohort allowed_dropouts dropout late slow joining local_steps local_epochs batch_size batch_rate "
        "optimizer learning_rate momentum weight_decay schedule warmup augment views precision compile server_lr merge "
        "averaging baseline audit device "
        "memory_gb federation workers blocks evaluate_every checkpoint_seconds metric class_weights classes "
        "decimal time_column window horizon stride time_step",
    )
    | {"seed": "a public input of an experiment on public data; on one's own data it is left out"},
    "plan.json": _of(
        INPUT,
        "method algorithm channel mode parameters gradient_path gradient_reason device public_data "
        + _below("environment", "python torch numpy machine threads"),
    )
    | _of(ASSUMED, "clients expected_cohort local_steps public")
    | _of(PLANNED, f"noise_multiplier {_below('promise', GUARANTEE)} claim.*")
    | _of(DERIVED, f"chosen.* evaluated_on {_below('evaluation', 'releases epsilon delta deviation apart text')}")
    | _of(INPUT, _below("budgets", "epsilon delta clients participations noise_multiplier"))
    | _of(ASSUMED, _below("initial_weights", "sha256 source")),
    "inputs.json": _of(SHAPE, "task shape dtype inputs outputs")
    | _of(DECLARED, "class_names scale.* table.schema.*")
    | _of(HEADER, "table.columns")
    | _of(INPUT, "table.label table.decimal"),
    "records.jsonl": _of(DERIVED, "round lost")
    | _of(PLANNED, "epsilon.* noise")
    | _of(FIGURES, "loss accuracy metrics.* confusion evaluated_on")
    | _of(RELEASED, "clip"),
    "result.json": _of(PLANNED, f"{_below('guarantee', GUARANTEE)} {_below('guarantees.*', GUARANTEE)} claim.*")
    | _of(DERIVED, "rounds notes together")
    | _of(FIGURES, "accuracy metrics.* confusion evaluated_on"),
    "accounting.json": _of(
        PLANNED,
        "delta spendable rounds "
        + _below("viewers.*", "unit relation reason left_out spent spent.round spent.event.*"),
    ),
    "baseline.json": _of(FIGURES, "accuracy metrics.* evaluated_on curve.*") | _of(DERIVED, "rounds"),
    "seal.json": _of(INPUT, "version algorithm sordino code plugins.*")
    | _of(DERIVED, "files.*")
    | _of(COMMITTED, "private ledger"),
    "tune.json": _of(INPUT, "space.* disjoint expected_trials law eta")
    | _of(PLANNED, "total.epsilon total.delta trial_epsilon sentence")
    | _of(RELEASED, "settings.*")
    | _of(FIGURES, "score"),
    "cells.json": _of(INPUT, "cells.name cells.method cells.epsilon cells.seed")
    | _of(PLANNED, "charged.runs charged.sentence"),
    "audit.json": _of(
        AUDITED,
        "method unit relation viewer channel rounds delta confidence claimed accounted played trials.* moves "
        "moves.* planted.* notes alarm least least_gaussian sentence",
    ),
    "stdout": _of(INPUT, "folder"),
}
FILES: dict[str, str] = {  # files without fields, or made only of fields of the files above
    "model.safetensors": RELEASED,
    "seal.json.sig": "a signature of seal.json by the owner's key; it names the public key",
    "report.html": "drawn from the public records of the run alone, under the name of its folder",
    "results.csv": "made of the public records and results of the cells alone",
    "summary.csv": "made of the public records and results of the cells alone",
    "table.md": "made of the public records and results of the cells alone",
} | {f"{name}.png": "drawn from the public records and results of the cells alone" for name in PICTURES}


def check_file(name: str) -> None:
    """Raise BoundaryError if a file is not listed as public."""
    if name not in TABLE and name not in FILES:
        raise BoundaryError(
            f"{name} is not listed in run_folder/boundary.py, so it may not be in public/. Move it away."
        )


def check_fields(name: str, data: Mapping[str, Any], also: Iterable[str] = ()) -> None:
    """Raise BoundaryError if a file, or a field in it, is not listed as public.

    Args:
        name: the name of the file.
        data: its contents.
        also: further fields that are allowed: the options of plug-ins.
    """
    check_file(name)
    _check(name, data, {*TABLE[name], *also})


def check_output(data: Mapping[str, Any]) -> None:
    """Raise BoundaryError if a JSON object that is about to be printed has a field that is not listed as public."""
    known = {*TABLE["stdout"], *TABLE["result.json"], "accuracy_without_privacy"}
    known |= {f"{part}.{field}" for part in ("tune", "audit") for field in TABLE[f"{part}.json"]}
    _check("standard output", data, known | {f"plan.{field}" for field in TABLE["plan.json"]})


def _check(name: str, data: Mapping[str, Any], allowed: set[str]) -> None:
    patterns = [re.compile(re.escape(field).replace(r"\*", ".*") + r"\Z") for field in allowed]
    unlisted = [path for path in _paths(data) if not any(p.match(path) for p in patterns)]
    if unlisted:
        raise BoundaryError(
            f"{name}: the field {unlisted[0]} is not listed in run_folder/boundary.py, so it may not be made public. "
            "Keep it in private/, or list it with the reason why it may leave."
        )


def _paths(data: Any, above: str = "") -> Iterator[str]:
    """Yield the dotted path of every value that is not a mapping; the entries of a list share one path."""
    if isinstance(data, Mapping) and (data or not above):
        for key, value in data.items():
            yield from _paths(value, f"{above}.{key}" if above else str(key))
    elif isinstance(data, list | tuple) and any(isinstance(v, Mapping) for v in data):
        for value in data:
            yield from _paths(value, above)
    elif not (data is None or data == {}):
        yield above


PLANNING = ("SpecError", "BudgetError", "UnsupportedEvent")  # errors that are about the plan, never about a record


def public_reason(reason: str) -> str:
    """Return the part of a failure's reason that may be public if the data are private.

    Only errors about the plan are returned in full. Of any other error only its kind is returned, since errors about
    data name records and values.
    """
    kind = reason.partition(":")[0]
    return reason if kind in PLANNING else f"{kind if kind.isidentifier() else 'an error'}: its reason is the owner's"


# --- the public version of a spec


def public_spec(spec: Spec, public_data: bool, own_model: bool) -> dict[str, Any]:
    """Return the keys of a spec that may be public.

    Paths are left out, and so is the seed unless the data are public.

    Args:
        spec: the spec of the run.
        public_data: whether the records are public already, as those of a shipped benchmark.
        own_model: whether the caller passed their own model and clients; the keys that would name them (`NAMED`) are
            then left out.
    """
    public = spec
    if spec.dataset not in plugin.available("data.sets"):
        public = replace(spec, dataset=spec.data_name or OWN)
    if not public_data:
        public = replace(public, seed=None)
    keys = {k: v for k, v in public.to_dict().items() if k not in HIDDEN and not (own_model and k in NAMED)}
    return {k: v for k, v in keys.items() if k not in VALUES or VALUES[k].match(str(v))}


def options_of(spec: Spec) -> set[str]:
    """Return the keys that the method and the algorithm of a spec add; they are public inputs like all others."""
    pairs = (("methods", spec.method), ("algorithms", spec.algorithm))
    return {f.name for kind, name in pairs for f in plugin_fields(kind, name)}
