"""Checks of a spec that need no data: made first, so that a typing mistake costs a second and not a minute.

What needs the data, but not their features, is checked next, by a trial of the whole job on the features of a few
records (`build.from_spec`). Nothing is charged and nothing is written before both have passed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sordino.contract import pricing
from sordino.contract.method import Method, Plan
from sordino.core import plugin
from sordino.core.errors import BudgetError, DataError, RunError, SordinoError, SpecError
from sordino.data import partition
from sordino.data.load import no_dataset
from sordino.ledger import home
from sordino.ledger.ledger import Ledger
from sordino.privacy import price
from sordino.privacy.algebra import non_private
from sordino.privacy.samplers import FixedSizeSampler, Poisson
from sordino.runs import initial_weights
from sordino.runs.paying import require_both
from sordino.spec import legal
from sordino.spec.spec import Spec


def check_spec(spec: Spec) -> None:
    """Raise an error if the keys of a spec do not go together, or if the model or a path that they name is missing."""
    check_method(spec)
    if spec.model is not None:
        plugin.load("models", spec.model)
    if spec.partition is not None:
        partition.parse(spec.partition)
    if spec.dataset not in plugin.available("data.sets"):
        _check_paths(spec)


def check_method(spec: Spec) -> None:
    """Raise an error unless the method goes with the algorithm, the unit, the channel and the viewer."""
    legal.require(spec.method, spec.algorithm, spec.unit)
    initial_weights.check_keys(spec)
    method: Method = spec.method_object()
    channel = spec.channel_object()
    if not {spec.channel, getattr(channel, "like", "")} & set(method.channels):
        raise SpecError(f"{spec.method} does not go with channel = {spec.channel}: use {', '.join(method.channels)}.")
    if method.reads == "rows" and not channel.shows_rows:
        raise SpecError(f"{spec.method} reads single clients' rows, but channel = {spec.channel} shows none.")
    reason = _unprotected(spec, method)
    if reason is not None:
        raise BudgetError(
            f"{spec.method} gives no guarantee against the {spec.viewer}: {reason}. Use viewer = {method.viewer}, or "
            "method = dp-sgd, which adds the noise inside the clients."
        )


def _unprotected(spec: Spec, method: Method) -> str | None:
    """Return why a private method has no finite epsilon against the viewer that is asked for; None if it may have one.

    The plan is an outline with two clients: whether an epsilon is finite does not depend on how many there are."""
    if spec.viewer is None or not method.private or not plugin.ours("methods", spec.method):
        return None
    fixed = spec.client_sampling == "fixed" and spec.client_rate < 1
    with contextlib.suppress(SordinoError):  # said where the plan is made
        plan = Plan(
            rounds=spec.rounds,
            population=2,
            sampler=FixedSizeSampler(1) if fixed else Poisson(spec.client_rate),
            noise_multiplier=1.0,
            algorithm=spec.algorithm_object(),
            unit=spec.unit,
            clients_per_user=spec.clients_per_user,
            channel=spec.channel_object(),
        )
        return non_private(price.cost_to(spec.viewer, pricing.planned(method, plan)).event)
    return None


def _check_paths(spec: Spec) -> None:
    """Raise an error if the user's own data, their test records or their schema are not where the spec says."""
    folder = Path(spec.data_dir or ".")
    data = folder / spec.dataset
    if not _exists(data):
        raise no_dataset(spec.dataset, folder)
    if spec.test is not None and not _exists(folder / spec.test):
        raise DataError(
            f"test must be the path of public records like {data.name}; there are none at {folder / spec.test}."
        )
    if spec.schema is not None and not (_exists(Path(spec.schema)) or _exists(data.parent / spec.schema)):
        raise DataError(f"there is no schema {spec.schema}, neither here nor beside {data.name}.")


def check_folders(spec: Spec) -> None:
    """Raise RunError if the run folder cannot be made, its name is taken, or the ledger cannot be read."""
    root = Path(spec.out)
    if spec.name is not None and _exists(path := root / spec.name):
        raise RunError(f"{path} exists already. Choose another name, or `sordino resume {path}`.")
    try:
        root.exists()
    except OSError as error:  # a name that no folder can have
        raise RunError(f"cannot make a run folder in {root}: {error.strerror}") from error
    there = next((p for p in (root, *root.absolute().parents) if _exists(p)), Path("/"))
    if not there.is_dir():
        raise RunError(f"cannot make a run folder in {root}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(f"cannot make a run folder in {root}: Permission denied")
    ledger = home.registry() if spec.ledger is None else Path(spec.ledger).absolute()
    require_both(ledger)
    if ledger.is_file() and ledger.stat().st_size:
        Ledger(ledger, "read").close()


def _exists(path: Path) -> bool:
    """Return whether there is such a path; False for a name that no file can have."""
    return os.path.exists(path)  # noqa: PTH110 (it accepts a name that is too long)
