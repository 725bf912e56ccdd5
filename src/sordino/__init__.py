"""Sordino: differentially private federated learning with an honest, total epsilon.

train       train one model over many clients' data with a total (epsilon, delta)
load        read a finished run: its model, guarantee and history
compare     compare methods at the same total budget
plan        say before training what would work
check       look for what makes a run less private than it seems
attack      what a curious server, client or outsider really learns of a run
Ledger      who has spent what, over all runs on the same people's data
accounting  price releases without training; imports no torch
callbacks   functions to call after every round: trackers, early ends
mechanisms, methods, algorithms     what there is, and what one's own derive from
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sordino.core import version

if TYPE_CHECKING:
    from sordino import accounting, algorithms, callbacks, mechanisms, methods
    from sordino.advice.questions import check, plan
    from sordino.comparisons.results import Comparison, compare
    from sordino.core.errors import SordinoError
    from sordino.data.clients import LazyClients
    from sordino.ledger.ledger import Ledger
    from sordino.privacy.guarantee import Guarantee
    from sordino.red_team.attack import attack
    from sordino.runs.load import load
    from sordino.runs.run import Result, train

__version__ = version.VERSION
__all__ = [
    "Comparison",
    "Guarantee",
    "LazyClients",
    "Ledger",
    "Result",
    "SordinoError",
    "__version__",
    "accounting",
    "algorithms",
    "attack",
    "callbacks",
    "check",
    "compare",
    "load",
    "mechanisms",
    "methods",
    "plan",
    "train",
]

_HOME = {
    "Comparison": "sordino.comparisons.results",
    "Guarantee": "sordino.privacy.guarantee",
    "LazyClients": "sordino.data.clients",
    "Ledger": "sordino.ledger.ledger",
    "Result": "sordino.runs.run",
    "SordinoError": "sordino.core.errors",
    "attack": "sordino.red_team.attack",
    "check": "sordino.advice.questions",
    "compare": "sordino.comparisons.results",
    "load": "sordino.runs.load",
    "plan": "sordino.advice.questions",
    "train": "sordino.runs.run",
}
_PACKAGES = ("accounting", "algorithms", "callbacks", "mechanisms", "methods")


def __getattr__(name: str) -> Any:
    """Import torch only when something that needs it is used: `sordino --help` stays fast."""
    if name in _PACKAGES:
        return import_module(f"sordino.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'sordino' has no attribute {name!r}; it has {', '.join(__all__)}.")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
