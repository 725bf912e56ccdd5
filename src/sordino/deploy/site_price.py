"""What a job costs a site, by the site's own count.

A site knows in which rounds it took part, and so does the server, so nothing is amplified by the draw of clients: each
participation counts in full. Where a site's epsilon differs from the one that the server promises to others, this is
why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from sordino.deploy.policy import Policy
from sordino.deploy.refusal import Refusal
from sordino.foreign.terms import RunTerms
from sordino.ledger.charges import Charge
from sordino.privacy import price, tightest
from sordino.privacy.events import Composed, Cost, Event, GaussianEvent, Repeated
from sordino.runs.job import Job

SPARE = 3.0  # standard deviations of the number of participations that a policy must cover beyond its mean


def own(job: Job, clients: Sequence[int]) -> Job:
    """Return the job as it is for a site with these clients: with the least of their noise, if each has its own."""
    plan = job.plan
    if not plan.multipliers or plan.noise_multiplier is None:
        return job
    least = min(plan.multipliers[i] for i in clients)
    return replace(job, plan=replace(plan, noise_multiplier=least, multipliers=()))


def charge(job: Job, participations: int) -> Charge:
    """Return what a job costs a site that takes part in so many rounds; `own` gives the job of a site."""
    cost, event = _total(job, participations)
    delta = job.spec.delta
    whole = Cost(cost.unit, cost.relation, job.viewer, event)
    return Charge(whole, tightest.epsilon(event, job.plan.spendable(delta)), delta)


def _total(job: Job, participations: int) -> tuple[Cost, Event]:
    if job.whole_costs is not None:
        cost = price.cost_to(job.viewer, job.whole_costs)
        rounds = cost.event if participations else Composed(())
        return cost, price.beside(rounds, job.once, job.apart, (cost,))
    costs = price.by_run(lambda c: price.cost_to(job.viewer, c), job.by_round)
    # as against a viewer who sees the draw, whoever the job protects from
    (event,) = price.total(
        costs, "server", job.plan.sampler, job.plan.population, job.plan.rounds, participations, job.once, job.apart
    )
    return costs[0], event


def participations(job: Job, policy: Policy, clients: Sequence[int]) -> int:
    """Return in how many rounds the policy lets a site with these clients take part; raise Refusal if in too few."""
    plan = job.plan
    most = plan.participations if job.caps is None else max(1, int(max(job.caps[i] for i in clients)))
    return affordable(lambda n: charge(job, n).epsilon, most, plan.rounds, plan.share, policy)


def foreign_cost(terms: RunTerms) -> Cost:
    """Return what a round of a foreign app costs a site that takes part, if the server adds the announced noise."""
    return Cost("client", "add/remove", "public", GaussianEvent(terms.noise_multiplier))


def foreign_charge(terms: RunTerms, participations: int) -> Charge:
    """Return what so many rounds of a foreign app cost a site."""
    event = Repeated(foreign_cost(terms).event, participations)
    return Charge(replace(foreign_cost(terms), event=event), tightest.epsilon(event, terms.delta), terms.delta)


def foreign_participations(terms: RunTerms, policy: Policy) -> int:
    """Return in how many rounds of a foreign app the policy lets a site take part, as for other jobs."""
    rounds, share = terms.rounds, terms.client_rate
    return affordable(lambda n: foreign_charge(terms, n).epsilon, rounds, rounds, share, policy)


def affordable(epsilon: Callable[[int], float], most: int, rounds: int, share: float, policy: Policy) -> int:
    """Return for how many participations the policy's epsilon per job pays.

    Args:
        epsilon: the price of so many participations.
        most: the largest number of them that the job can ask for.
        rounds: the number of rounds.
        share: the probability of being drawn for a round.
        policy: the policy.

    Raises:
        Refusal: if those are fewer than the job is likely to ask for.
    """
    if epsilon(most) <= policy.epsilon_per_job:
        return most
    mean = share * rounds
    wanted = min(most, math.ceil(mean + SPARE * math.sqrt(mean * (1 - share))))
    low, high = 0, most  # low is covered, high is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(middle) <= policy.epsilon_per_job else (low, middle)
    if low >= wanted:
        return low
    need = epsilon(wanted)
    if math.isinf(need):
        raise Refusal("the method gives no guarantee against the viewer whom the job protects from.")
    raise Refusal(
        f"the job asks for {wanted} rounds of this site, which cost epsilon {need:.4g} by its own count; the policy "
        f"allows {policy.epsilon_per_job:g} per job."
    )
