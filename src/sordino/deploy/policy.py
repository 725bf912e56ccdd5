"""The policy of a site: what its owner allows any server to ask for. Without a policy nothing is trained.

The policy is the site's own file, and the site enforces it by itself: with its own price of a job, its own ledger and
its own count of rounds. A refusal tells the server what was asked and what is allowed, and nothing about the data.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.deploy.refusal import Refusal
from sordino.foreign.terms import RunTerms
from sordino.privacy import trust
from sordino.spec.spec import Spec, types_of
from sordino.spec.values import typed

FOREIGN = "foreign"  # in `methods`: apps with training code of their own, as far as `foreign_apps` lists them


@dataclass(frozen=True)
class Policy:
    """The limits that a site sets; each field is a key of its policy file."""

    epsilon_per_job: float  # largest epsilon of one job, by this site's own count, without amplification by sampling
    delta_per_job: float  # largest delta of one job
    epsilon_total: float  # largest epsilon of all jobs together
    delta_total: float  # largest delta of all jobs together
    methods: tuple[str, ...]  # methods that may be used
    units: tuple[str, ...]  # whose data a job must protect: record, client or user
    viewers: tuple[str, ...]  # against whom: server, server+N, client or public
    channels: tuple[str, ...] = ("direct", "shuffler", "secure-sum")  # how answers may travel
    min_cohort: int = 2  # fewest clients that a job may have; behind a secure sum or a shuffler, in every round
    allowed_dropouts: int = 0  # behind these: most clients of a round that may be missing
    secure_noise: bool = True  # whether noise must be keyed by this machine, not by a seed
    records: int | None = None  # public number of records that the site declares; further ones are left out
    foreign_apps: tuple[str, ...] = ()  # sha256 of Flower apps with training code of their own that were reviewed
    foreign_seconds: float = 1800.0  # time limit of such an app in one round
    answer_seconds: float = 0.5  # answers leave at whole multiples of this time, so that their timing tells little
    largest_letter: int = 1 << 30  # bytes

    def __post_init__(self) -> None:
        for name in ("epsilon_per_job", "epsilon_total"):
            if getattr(self, name) != math.inf:  # no limit: for methods without privacy, on public records
                check.positive(**{name: getattr(self, name)})
        check.positive(delta_per_job=self.delta_per_job, delta_total=self.delta_total)
        check.below_one(delta_per_job=self.delta_per_job, delta_total=self.delta_total)
        check.count(min_cohort=self.min_cohort, largest_letter=self.largest_letter)
        check.non_negative(allowed_dropouts=self.allowed_dropouts, answer_seconds=self.answer_seconds)
        check.positive(foreign_seconds=self.foreign_seconds)
        if self.records is not None:
            check.count(records=self.records)
        for name in ("methods", "units", "viewers", "channels"):
            if not getattr(self, name):
                raise SpecError(f"{name} of a policy is empty, so that nothing is allowed: name at least one.")
        for viewer in self.viewers:
            trust.viewer(viewer)
        for digest in self.foreign_apps:
            if not re.fullmatch("[0-9a-f]{64}", digest):
                raise SpecError(
                    f"foreign_apps of a policy names {digest!r}, which is no sha256 digest of an app: "
                    "`sordino site --digest APP` prints it."
                )

    def check(self, spec: Spec, viewer: str, unit: str, mode: str, population: int) -> None:
        """Raise Refusal if a job asks for what the policy does not allow; its price is checked by the ledger.

        Args:
            spec: the spec of the job.
            viewer: against whom its guarantee holds.
            unit: whose data it protects.
            mode: where its noise comes from: research or secure.
            population: the number of clients.
        """
        self._allow(spec.method, unit, viewer, spec.channel)
        if self.secure_noise and mode != "secure":
            raise Refusal(
                "the job draws its noise from a seed, which the server knows; the policy of this site asks for "
                "mode = secure."
            )
        self._limit(population, spec.delta)
        if spec.channel not in ("secure-sum", "shuffler"):
            return
        verb = "sums over" if spec.channel == "secure-sum" else "mixes"
        least = population if spec.min_cohort is None and spec.client_rate >= 1 else (spec.min_cohort or 1)
        if least < self.min_cohort or spec.allowed_dropouts > self.allowed_dropouts:
            raise Refusal(
                f"the job {verb} cohorts of {least} clients or more, of whom {spec.allowed_dropouts} may be "
                f"missing; the policy of this site asks for {self.min_cohort} or more, of whom {self.allowed_dropouts} "
                "at most may be missing."
            )

    def check_foreign(self, app: str, terms: RunTerms) -> None:
        """Raise Refusal if a run of an app with training code of its own asks for what the policy does not allow.

        The server of such a run adds the noise and is trusted with it, so `secure_noise` cannot be checked here.

        Args:
            app: the digest of the app.
            terms: what the server announces.
        """
        self._allow(FOREIGN, terms.unit, "public", "direct")
        self._limit(terms.clients, terms.delta)
        if not app:
            raise Refusal("the app does not say which it is: it must be started by Flower, from a folder of its own.")
        if app not in self.foreign_apps:
            raise Refusal(
                f"the policy of this site does not list this app. If its owner has reviewed it: foreign_apps = "
                f'["{app}"], and a copy of it by `sordino site --app`.'
            )

    def _allow(self, method: str, unit: str, viewer: str, channel: str) -> None:
        for what, asked, allowed in (
            ("method", method, self.methods),
            ("unit", unit, self.units),
            ("viewer", viewer, self.viewers),
            ("channel", channel, self.channels),
        ):
            if asked not in allowed:
                raise Refusal(f"the job asks for {what} {asked}; the policy of this site allows {', '.join(allowed)}.")

    def _limit(self, population: int, delta: float) -> None:
        if population < self.min_cohort:
            raise Refusal(f"the job has {population} clients; the policy of this site asks for {self.min_cohort}.")
        if delta > self.delta_per_job:
            raise Refusal(f"the job asks for delta {delta:g}; the policy allows {self.delta_per_job:g} per job.")


def read(path: Path) -> Policy:
    """Return the policy in a file; raise SpecError with one clear line if it is none."""
    try:
        keys = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read the policy {path}: {error}. A site without a policy trains nothing.") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"the policy {path} is not valid TOML: {error}") from error
    hints: dict[str, Any] = types_of(Policy)
    fields = {f.name: f for f in dataclasses.fields(Policy)}
    if strange := sorted(set(keys) - set(fields)):
        raise SpecError(f"the policy {path} has the unknown key {strange[0]}; it takes {', '.join(fields)}.")
    needed = [name for name, f in fields.items() if f.default is dataclasses.MISSING and name not in keys]
    if needed:
        raise SpecError(f"the policy {path} does not set {needed[0]}; a site must say what it allows.")
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in keys.items()}
    return Policy(**{k: typed(k, v, hints[k]) for k, v in frozen.items()})
