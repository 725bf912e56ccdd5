"""Private methods, and the names needed to write one.

Every method that Sordino ships, or finds in SORDINO_PLUGINS, is an attribute under its class name:

    >>> import sordino
    >>> sordino.methods.DpSgd(clip=0.5)
    DpSgd(clip=0.5, batch_sampling='poisson')

Your own methods derive from `Method` and declare each `Release`; docs/methods.md walks through an example. The names
for it are here: `Method`, `Plan`, `Site`, `State`, `Message`, `Release`, `Draw`, `Unproven`, `Claim`, `Bounded` and
`local_sgd`, which trains every client of a site without noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sordino.core import plugin

if TYPE_CHECKING:
    from sordino.contract.claim import Claim
    from sordino.contract.local_sgd import sgd as local_sgd
    from sordino.contract.method import Method
    from sordino.contract.plan import Plan
    from sordino.contract.site import Own, Site
    from sordino.core.message import Message
    from sordino.core.types import State
    from sordino.privacy.clip import Bounded
    from sordino.privacy.release import Draw, Release, Unproven

__all__ = [
    "Bounded",
    "Claim",
    "Draw",
    "Message",
    "Method",
    "Own",
    "Plan",
    "Release",
    "Site",
    "State",
    "Unproven",
    "local_sgd",
]

_HOME = {
    "Bounded": "sordino.privacy.clip.Bounded",
    "Claim": "sordino.contract.claim.Claim",
    "Draw": "sordino.privacy.release.Draw",
    "Message": "sordino.core.message.Message",
    "Method": "sordino.contract.method.Method",
    "Own": "sordino.contract.site.Own",
    "Plan": "sordino.contract.plan.Plan",
    "Release": "sordino.privacy.release.Release",
    "Site": "sordino.contract.site.Site",
    "State": "sordino.core.types.State",
    "Unproven": "sordino.privacy.release.Unproven",
    "local_sgd": "sordino.contract.local_sgd.sgd",
}


def __getattr__(name: str) -> Any:
    return plugin.attribute("methods", name, _HOME)


def __dir__() -> list[str]:
    return sorted({*__all__, *plugin.classes("methods")})
