"""Exact noise: in secure mode, Gaussian noise is sampled on a lattice from random bits, without floating point.

The mechanism of a release is replaced in this one place, before the release is accounted and before it is applied;
methods need not know about it. The proof is in docs/exact-noise.md. Besides the mechanism, the proof needs a bound,
known in advance, on the floating-point error of the sum to which the noise is added: `Release.terms` says how a value
is summed.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.contract.plan import Plan
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from sordino.privacy.release import GRADIENTS, Release

NEVER = 2.0**-140  # probability that a batch exceeds the assumed maximum, which aborts the run
SHARED = "clients share the noise of a sum, and send it in floating point numbers"
SEVERAL = "the price counts on the noise of several clients in one sum"


def swapped(release: Release, plan: Plan, split: int) -> Release:
    """Return the release with exact noise if the plan asks for it and the noise is Gaussian.

    If clients share the noise (`split` > 1), the release must be `additive`: rows are then sent as integers, whose sum
    is exact.
    """
    summed = plan.everyone or split > 1  # the noise of several clients counts
    as_integers = release.additive and release.where == "client" and summed and not plan.multipliers
    if plan.exact is None or type(release.mechanism) is not Gaussian or (split > 1 and not as_integers):
        return release
    error = plan.exact.gradients if release.terms == GRADIENTS else 0.0
    terms = max(1, release.terms or 1) * (plan.population if release.where == "server" else 1)
    rows = 1 if plan.channel.shows_rows else plan.population
    noise = RoundedGaussian(
        release.mechanism.noise_multiplier,
        contributions=terms,
        float_error=error or 0.0,
        summed=rows * (plan.exact.batch if release.terms == GRADIENTS else terms) if as_integers else 0,
        shared=split,
    )
    return replace(release, mechanism=noise)


def doubt(releases: tuple[Release, ...], plan: Plan, several: bool = False) -> str | None:
    """Return why the proof of these releases does not cover floating point, or None if it does.

    Args:
        releases: The releases as they are applied.
        plan: The public plan of the run.
        several: Whether the privacy cost relies on the noise of several clients in one sum.
    """
    if plan.exact is None:
        return "the noise is drawn as floating point numbers"
    for release in releases:
        if getattr(release.mechanism, "integers", False):
            continue  # the bound is checked on whole numbers, to which exact noise is added
        if type(release.mechanism) is Gaussian:
            return SHARED
        if type(release.mechanism) is not RoundedGaussian:
            return f"{type(release.mechanism).__name__} noise is drawn as floating point numbers"
        if release.terms is None:
            return "how far floating point moves these clipped sums is not known in advance"
        if release.terms == GRADIENTS and plan.exact.gradients is None:
            return plan.exact.reason
        if several and (release.onto or (release.where == "client" and not release.mechanism.summed)):
            return SEVERAL  # also if the server adds noise on top: the sum is rounded between the two noises
    return None


def largest_batch(plan: Plan, drawn: bool) -> int:
    """Return the largest batch size of any client, exceeded with probability at most 2^-140 if batches are `drawn`."""
    from scipy.stats import binom  # takes a second to import

    sizes, rate = plan.sizes, plan.local.rate
    if not drawn:
        return max(sizes)
    return max(n if rate(n) >= 1 else min(n, int(binom.isf(NEVER, n, rate(n))) + 1) for n in sizes)
