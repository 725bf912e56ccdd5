"""The first policy of a site: a commented file whose limits allow the job it was written for, and nothing else."""

from __future__ import annotations

import math
from typing import Any

from sordino.core import plugin
from sordino.spec.spec import Spec
from sordino.spec.toml import to_toml


def repeatable(spec: Spec) -> bool:
    """Return whether the noise of this spec comes from a seed: research mode, as on a shipped benchmark."""
    if spec.mode is not None:
        return spec.mode == "research"
    return spec.seed is not None or spec.public_data or spec.dataset in plugin.available("data.sets")


def template(spec: Spec, sites: int) -> str:
    """Return the text of policy.toml for a site of a federation that is to run this spec once."""
    method = spec.method_object()
    private = bool(method.private)
    epsilon, delta = (spec.epsilon, spec.delta) if private else (math.inf, 0.5)
    hidden = spec.channel != "direct"
    lines = [
        "# What this site allows. The site's daemon reads this file; the server cannot change it, and a request that",
        "# does not fit is refused before any record is read. Change it only as far as your people's consent goes.",
        "",
        "# Largest privacy loss of one job, and of all jobs together, on the data of this site, by its own count: a",
        "# round in which it takes part counts in full, whatever sampling promises to others.",
        *([] if private else [f"# {spec.method} adds no noise and promises nothing: these limits are off."]),
        f"epsilon_per_job = {_number(epsilon)}",
        f"delta_per_job = {_number(delta)}",
        f"epsilon_total = {_number(epsilon)}  # room for this job alone; raise it to allow a second one",
        f"delta_total = {_number(delta)}",
        "",
        "# Which methods may run, whose data they must protect, against whom, and how answers may travel.",
        f"methods = {_list(spec.method)}",
        f"units = {_list(spec.unit or method.units[0])}",
        f"viewers = {_list(spec.viewer or method.viewer)}",
        f"channels = {_list(spec.channel)}",
        "",
        "# Fewest clients that a job may have (behind a secure sum: in every round), and how many of a round may be",
        "# missing behind a secure sum.",
        f"min_cohort = {_least(spec, sites) if hidden else sites}",
        f"allowed_dropouts = {spec.allowed_dropouts if hidden else 0}",
        "",
        *_noise(spec),
        "",
        "# The number of records of this site, if it is public; records beyond it are left out.",
        "# records = 1200",
        "",
        "# Flower apps with training code of their own that you have reviewed, by the digests that `sordino site",
        "# --digest APP` prints; by default none. They also need foreign in methods, client in units, public in",
        "# viewers, and your copy of the app by `sordino site --app`. Their server adds the noise: this site cannot",
        "# check that, and trusts the server with it.",
        "foreign_apps = []",
    ]
    return "\n".join(lines) + "\n"


def _least(spec: Spec, sites: int) -> int:
    """Return the smallest cohort that a job behind a secure sum may have."""
    return sites if spec.min_cohort is None and spec.client_rate >= 1 else spec.min_cohort or 1


def _noise(spec: Spec) -> list[str]:
    if repeatable(spec):
        why = "names public data" if spec.mode is None and spec.seed is None else "asks for a repeatable run"
        return [
            "# Whether the noise must come from the operating system. It is off here because the run file",
            f"# {why}: noise from a seed can be subtracted by whoever knows the seed. Turn it on for real data.",
            "secure_noise = false",
        ]
    return [
        "# The noise must come from the operating system, never from a seed that someone else knows.",
        "secure_noise = true",
    ]


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else to_toml(float(value))


def _list(*values: Any) -> str:
    return to_toml(tuple(str(value) for value in values))
