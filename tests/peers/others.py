"""Other people's accountants behind one kind of call: epsilon at delta. Their warnings are theirs and stay here."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache

import dp_accounting as dp
import numpy as np
from absl import logging as absl_logging
from dp_accounting.pld import privacy_loss_distribution as plds
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp import rdp_privacy_accountant

# what it takes long for: a number of three numbers, which several tests ask for
rdp_privacy_accountant._compute_log_a = lru_cache(maxsize=None)(rdp_privacy_accountant._compute_log_a)

ADD, REPLACE = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.NeighboringRelation.REPLACE_ONE


def quiet(ask):
    """The function, without warnings, chatter and progress of the library it asks."""

    def asked(*args, **kwargs):
        level = absl_logging.get_verbosity()
        absl_logging.set_verbosity(absl_logging.FATAL)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return ask(*args, **kwargs)
        finally:
            absl_logging.set_verbosity(level)

    asked.__name__ = ask.__name__
    return asked


def steps(event: dp.DpEvent, count: int) -> dp.DpEvent:
    return dp.SelfComposedDpEvent(event, count) if count > 1 else event


@quiet
def dp_rdp(event: dp.DpEvent, delta: float, relation=ADD, orders: Sequence[float] | None = None) -> float:
    accountant = rdp_privacy_accountant.RdpAccountant(orders, relation)
    return accountant.compose(event).get_epsilon(delta)


@quiet
def unconverged(event: dp.DpEvent) -> bool:
    """Whether it has no value at some fractional orders."""
    accountant = rdp_privacy_accountant.RdpAccountant([1 + x / 10 for x in range(1, 100)], ADD)
    return bool(np.any(np.isinf(accountant.compose(event).rdp)))


@quiet
def dp_pld(event: dp.DpEvent, delta: float, grid: float, relation=ADD) -> float:
    return PLDAccountant(relation, value_discretization_interval=grid).compose(event).get_epsilon(delta)


@quiet
def dp_response(keep: float, buckets: int, count: int, delta: float, grid: float) -> float:
    """By the distribution itself: the accountant of dp-accounting 0.6 forgets how often."""
    one = plds.from_randomized_response(
        1 - keep, buckets, value_discretization_interval=grid, neighboring_relation=REPLACE
    )
    return one.self_compose(count).get_epsilon_for_delta(delta)


@quiet
def dp_discrete_gaussian(sigma: float, count: int, delta: float, grid: float) -> float:
    one = plds.from_discrete_gaussian_mechanism(sigma, value_discretization_interval=grid)
    return one.self_compose(count).get_epsilon_for_delta(delta)


@quiet
def prv(mechanisms: Sequence[tuple], delta: float, error: float) -> tuple[float, float, float]:
    """(lower, estimate, upper).

    Mechanisms with their counts: ("gaussian", z), ("sampled", z, rate), ("laplace", epsilon), ("pure", epsilon).
    """
    import prv_accountant as library
    from prv_accountant import privacy_random_variables as variables

    kinds = {
        "gaussian": variables.GaussianMechanism,
        "sampled": lambda z, rate: variables.PoissonSubsampledGaussianMechanism(rate, z),
        "laplace": lambda b: variables.LaplaceMechanism(b),
        "pure": variables.PureDPMechanism,
    }
    found = [kinds[kind](*fields) for (kind, *fields), _ in mechanisms]
    counts = [count for _, count in mechanisms]
    accountant = library.PRVAccountant(found, eps_error=error, delta_error=delta / 1000, max_self_compositions=counts)
    return accountant.compute_epsilon(delta, counts)


@quiet
def opacus(kind: str, steps: Sequence[tuple[float, float, int]], delta: float, **options) -> float:
    """kind: rdp, prv or gdp; steps of (z, rate, count)."""
    from opacus.accountants import create_accountant

    accountant = create_accountant(kind)
    accountant.history = [tuple(step) for step in steps]
    return float(accountant.get_epsilon(delta, **options))


@lru_cache(maxsize=1)
def _autodp():
    import autodp.mechanism_zoo as mechanisms
    import autodp.transformer_zoo as transformers

    return mechanisms, transformers


@quiet
def autodp(releases: Sequence[tuple], delta: float) -> float:
    """By RDP.

    Releases with their counts: ("gaussian", z), ("laplace", b), ("response", p), ("pure", e), ("sampled", z, rate).
    """
    mechanisms, transformers = _autodp()
    made = []
    for (kind, *fields), _ in releases:
        if kind == "sampled":
            inner = mechanisms.GaussianMechanism(fields[0], approxDP_off=True)
            inner.neighboring = "add_remove"
            made.append(
                transformers.AmplificationBySampling(PoissonSampling=True)(inner, fields[1], improved_bound_flag=True)
            )
        elif kind == "gaussian":
            made.append(mechanisms.GaussianMechanism(fields[0], approxDP_off=True))
        else:
            zoo = {
                "laplace": mechanisms.LaplaceMechanism,
                "response": mechanisms.RandresponseMechanism,
                "pure": mechanisms.PureDP_Mechanism,
            }
            made.append(zoo[kind](fields[0]))
    counts = [count for _, count in releases]
    return float(transformers.Composition()(made, counts).get_approxDP(delta))
