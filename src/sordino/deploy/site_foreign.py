"""A site's answers to Flower apps with training code of their own: a reviewed app trains, and a clipped update leaves.

The server of such a run is trusted: it sees each update and adds the noise, which a site cannot check. What the site
decides by itself is which code sees its data, that nothing but one clipped update per round leaves, and how often.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from sordino.core import faults
from sordino.core.errors import SordinoError
from sordino.deploy import site_account, site_price
from sordino.deploy.policy import FOREIGN, Policy
from sordino.deploy.refusal import Refusal
from sordino.deploy.reviewed import AppMod
from sordino.deploy.site_account import JobPlan, SiteAccount
from sordino.deploy.site_data import SiteData
from sordino.foreign import frames, update
from sordino.foreign.request import Named, TrainRequest, numbered
from sordino.foreign.terms import ONLY_CLIENTS, RunTerms

DATA = "data"  # entry of the node's config that holds the path of the data
PHASE = "train"


class TrainingApp(Protocol):
    """An app that a site can run: see `reviewed.ReviewedApp`."""

    @property
    def digest(self) -> str:
        """The digest by which a policy names the app."""

    def mod(self) -> AppMod:
        """Return the first mod of the app."""

    def train(self, request: TrainRequest, node: Mapping[str, Any]) -> Named:
        """Return the arrays that the app's training function returns."""


@dataclass(frozen=True)
class ForeignApps:
    """The apps of which a site has copies, and what its owner tells them."""

    apps: tuple[TrainingApp, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)  # further entries of the node's config

    def copy_of(self, digest: str) -> TrainingApp:
        """Return the copy of an app; raise Refusal if there is none."""
        for app in self.apps:
            if app.digest == digest:
                return app
        raise Refusal("the policy lists this app, but the site has no copy of it: its owner starts it with --app.")


NO_APPS = ForeignApps()


class SiteForeign:
    """The verb of a site that serves foreign apps.

    Args:
        policy: what its owner allows.
        data: its data, of which only the path is used.
        folder: its private folder.
        apps: the reviewed apps.
        log: writes a line for the owner.
    """

    def __init__(
        self, policy: Policy, data: SiteData, folder: Path, apps: ForeignApps, log: Callable[[str], None]
    ) -> None:
        self._policy, self._data, self._folder, self._apps, self._log = policy, data, folder, apps, log
        self._accounts: dict[str, SiteAccount] = {}

    def answer(self, header: dict[str, Any], tensors: dict[str, Tensor], request: bytes) -> bytes:
        """Train for one round, and return the clipped update; everything else stays here."""
        asked, terms, round = _read(header, tensors)
        self._policy.check_foreign(asked.app, terms)
        app = self._apps.copy_of(asked.app)
        _check_mod(app.mod(), terms)
        account = self._account(asked.app, terms)
        place = f"round {round + 1}"
        before = account.answers.before(place, request)
        if before is not None:
            return before
        account.in_order(round, PHASE, (PHASE,))
        account.pay(round, [0], site_price.foreign_cost(terms))
        faults.point("paid at a site")
        returned = app.train(asked, self._node())
        out = update.let_out(returned, asked.arrays, terms.clip)
        body = frames.packed({}, numbered(out))
        account.answers.keep(place, round, request, body)
        faults.point("kept at a site")
        return body

    def _account(self, app: str, terms: RunTerms) -> SiteAccount:
        """Return the account of a run; the first time, all its rounds are charged.

        The terms and the app are the run: whoever changes anything asks for another one, which is charged anew.
        """
        text = json.dumps({"app": app, **asdict(terms)}, sort_keys=True)
        id = hashlib.sha256(text.encode()).hexdigest()
        if id not in self._accounts:
            rounds = site_price.foreign_participations(terms, self._policy)
            plan = JobPlan(id, site_price.foreign_charge(terms, rounds), rounds, FOREIGN, "secure")
            folder = self._folder / "jobs" / id[:32]
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            whose = site_account.anyone(self._data)
            self._accounts[id] = SiteAccount(plan, self._policy, whose, self._folder, folder)
            self._log(f"opened job {id[:16]}: the app {app[:16]}, {terms.clients} clients, {rounds} rounds")
        return self._accounts[id]

    def _node(self) -> dict[str, Any]:
        """Return the node's config as the app's training function sees it."""
        source = self._data.source
        return {DATA: source if self._data.benchmark else str(Path(source).absolute())} | dict(self._apps.config)

    def close(self) -> None:
        """Close all files."""
        for account in self._accounts.values():
            account.close()
        self._accounts.clear()


def _read(header: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[TrainRequest, RunTerms, int]:
    """Return the request, its terms and its round; raise Refusal for anything that no server of ours sends."""
    try:
        asked = TrainRequest.read(header, {name: np.asarray(value.numpy()) for name, value in tensors.items()})
        terms, round = asked.terms, asked.round
    except (SordinoError, TypeError) as error:
        raise Refusal("the letter does not hold a message for training with the terms of a private run.") from error
    if terms.unit != "client":
        raise Refusal(f"the run asks for another unit than client, but {ONLY_CLIENTS}.")
    if not 0 <= round < terms.rounds:
        raise Refusal(f"round {round + 1} was asked for; the run has {terms.rounds} rounds.")
    if any(value.dtype.kind != "f" for value in asked.arrays.values()):
        raise Refusal("the model has arrays that do not hold floating point numbers.")
    return asked, terms, round


def _check_mod(mod: AppMod, terms: RunTerms) -> None:
    """Raise Refusal unless `private_mod` is the first of an app's mods, with the clip of the run."""
    if mod.clip is None:
        raise Refusal("the app has no private_mod among the mods of its ClientApp, so nothing of it may leave.")
    if not mod.first:
        raise Refusal("private_mod is not the first of the app's mods, so others could change what leaves.")
    if mod.clip != terms.clip:
        raise Refusal(f"the run clips at {terms.clip:g}; the app's private_mod clips at {mod.clip:g}.")
