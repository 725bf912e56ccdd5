"""GeoDP as printed.  Yuan et al. (2023), "Amplitude-varying perturbation for balancing privacy and utility in federated
learning", arXiv:2303.04274 (Time-Varying DP in later comparisons); unit record, viewer server; the claim does not hold.

Xue et al. call this work GeoDP (their reference 30). It is not the GeoDP of Duan et al. (2025), arXiv:2504.05618, which
perturbs the length and the direction of a gradient separately.

Clients clip their trained weights to C and add noise whose variance is a geometric series over the global aggregations,
sigma_t^2 = sigma_1^2 r^(t-1); T and (epsilon, delta) determine sigma_1 with the sensitivity 2C/m. We did not have the
text, and found no code. The abstract confirms that model updates are perturbed, that the amplitude is a geometric
series which depends on the number of aggregations and on (epsilon, delta), and that it is refined online. It does not
say whether r is the ratio of variances (here) or of amplitudes, which way the series goes, what the sensitivity is, or
how epsilon composes; the last is an option (claims.geodp_first_std):

    moments  sum_t (2C/m)^2 / sigma_t^2 = eps^2 / (2 ln(1/delta)): the moments bound in the same group's public code
    linear   sum_t c (2C/m) / sigma_t = eps, as in NbAFL, to which it reduces at r = 1

The online refinement of the series by the training loss is left out: it would be one more use of private data.

Not sound, for the same reason as NbAFL: replacing one record moves trained and clipped weights by up to 2C. What holds
is charged: every upload is a Gaussian of multiplier sigma_t / (2C) for a replaced client. `clip_by` and `scope` are as
in nbafl_paper.py; its `scheduling` has no effect here, as the mean has no noise. With `scope = round` the epsilon is
that of the first round; if r < 1, later rounds have less noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.contract.method import Claim, Plan
from sordino.core import check
from sordino.methods import _claims as claims
from sordino.methods.geodp import require_ratio
from sordino.methods.nbafl_paper import WHY_NOT, NbAFLPaper

__all__ = ["GeoDPPaper"]


@dataclass(frozen=True)
class GeoDPPaper(NbAFLPaper):
    """GeoDP as printed; its claim does not hold."""

    noise_ratio: float = 0.95  # r: variance of the noise in a round over that in the round before
    reading: str = "moments"  # how epsilon composes over the rounds: moments or linear

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(noise_ratio=self.noise_ratio)
        check.one_of(claims.GEODP_READINGS, reading=self.reading)

    def require(self, plan: Plan) -> None:
        require_ratio(self.noise_ratio, plan.rounds)

    def uplink(self, plan: Plan, round: int) -> float:
        """Return sigma_t, the standard deviation of the noise in one client's weights in this round."""
        rounds, exposures = self.counted(plan)  # with scope = round: the first round
        spread = (rounds, exposures, self.noise_ratio, self.reading)
        first = claims.geodp_first_std(self.clip, plan.smallest_client, plan.epsilon, plan.delta, *spread)
        return first * math.exp(math.log(self.noise_ratio) * round / 2)

    def downlink_std(self, plan: Plan) -> float:
        """Return 0: the mean gets no noise."""
        return 0.0

    def claim(self, plan: Plan) -> Claim:
        source = "Yuan et al. (2023)" + (", of the first round" if self.scope == "round" else "")
        return Claim(plan.epsilon, plan.delta, source, WHY_NOT, self.scope)
