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
    epsilon, delta = (spec.epsilon, spec.delta) if private else (math.inf, 1.0)
    masked = spec.channel == "secure-sum"
    lines = [
        "# What this site allows. The site's daemon reads this file; the server cannot change it, and a request that",
        "# does not fit is refused before any record is read. Change it only as far as your people's consent goes.",
        "",
        "# Largest privacy loss of one job, and of all jobs together, on the data of this site.",
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
        "# Smallest number of sites among which an answer may hide (matters for secure-sum), and how many of them may",
        "# fall silent in a round before this site stops answering.",
        f"min_cohort = {min(sites, 2) if masked else 1}",
        f"allowed_dropouts = {max(0, sites - 2) if masked else sites}",
        "",
        *_noise(spec),
        "",
        "# The number of records of this site, if it is public; it is then used instead of a noisy count.",
        "# records = 1200",
        "",
        "# sha256 digests of other apps that may talk to this site; by default none.",
        "foreign_apps = []",
    ]
    return "\n".join(lines) + "\n"


def _noise(spec: Spec) -> list[str]:
    if repeatable(spec):
        why = "is a shipped benchmark" if spec.mode is None and spec.seed is None else "asks for a repeatable run"
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
