"""A site's rows behind a shuffler: what its roster must say before it takes part, and the sealed row itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sordino.contract.plan import Plan
from sordino.core.message import Message
from sordino.deploy import roster as rosters
from sordino.deploy.folder import Roster
from sordino.deploy.refusal import Refusal
from sordino.federations import mixed
from sordino.masking.identity import Identity


def check(roster: Roster, name: str, plan: Plan) -> None:
    """Raise Refusal if a job needs a shuffler that this site's own roster does not vouch for.

    Args:
        roster: the site's own file; a key that came from the server would be the server's.
        name: the name of the site.
        plan: the plan of the job, as this site computed it.
    """
    if plan.channel.name != mixed.NAME:
        return
    if roster.shuffler is None:
        raise Refusal("the job needs a shuffler; federation.toml of this site names none (shuffler = its public key).")
    if roster.sites[rosters.number(roster, name)].clients != 1:
        raise Refusal("channel = shuffler needs one client per site: rows of one site would arrive together.")
    if plan.sure > roster.shuffler_least:
        raise Refusal(
            f"the job counts on {plan.sure} reports in every batch; the shuffler of this site's federation.toml mixes "
            f"{roster.shuffler_least} or more (shuffler_least)."
        )


def for_shuffler(
    message: Message,
    roster: Roster,
    name: str,
    identity: Identity,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> bytes:
    """Return the sealed message of this site's client; the request says for which job, round, phase and state."""
    if roster.shuffler is None:
        raise Refusal("federation.toml of this site names no shuffler.")
    at = mixed.session(roster.name, header, tensors)
    return mixed.sealed_row(message, roster.shuffler, rosters.number(roster, name), identity, at)
