"""`sordino completion`: print the line that enables shell completion; and the values that keys are completed with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from sordino.core import plugin

LINES = {
    "bash": 'eval "$(_SORDINO_COMPLETE=bash_source sordino)"',
    "zsh": 'eval "$(_SORDINO_COMPLETE=zsh_source sordino)"',
    "fish": "_SORDINO_COMPLETE=fish_source sordino | source",
}
PLUGGED = {  # key -> the kind of plug-in that it names
    "method": "methods",
    "algorithm": "algorithms",
    "channel": "channels",
    "model": "models",
    "dataset": "data.sets",
}
WORDS: dict[str, Sequence[str]] = {  # key -> the words that it takes
    "unit": plugin.UNITS,
    "viewer": ("server", "public", "client", "server+1"),
    "mode": ("secure", "research"),
    "partition": ("iid", "natural", "quantity:1", "dirichlet:0.5", "shards:2"),
    "features": ("scattering", "silhouettes", "oriented-gradients", "colour-scattering", "drawn-prior", "none"),
    "evaluate_on": ("test", "validation", "tuning"),
    "client_sampling": ("poisson", "fixed"),
    "batch_sampling": ("poisson", "fixed"),
    "optimizer": ("sgd", "momentum", "adam", "rmsprop"),
    "schedule": ("constant", "linear", "cosine", "step"),
    "augment": ("none", "flip", "flip-crop"),
    "precision": ("float32", "bfloat16"),
    "merge": ("mean", "median", "trimmed:0.1", "krum:1", "norm-bound:1"),
    "averaging": ("none", "tail:0.5", "ema:0.99", "polynomial:8"),
    "device": ("auto", "cpu", "cuda"),
    "federation": ("simulator", "workers", "ray"),
}
# keys whose values may be paths
PATHS = ("dataset", "data_dir", "schema", "test", "budgets", "initial_weights", "out", "ledger")

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def values(key: str) -> list[str]:
    """Return the values that a key is completed with: names of plug-ins, or the words that it takes."""
    return plugin.available(PLUGGED[key]) if key in PLUGGED else list(WORDS.get(key, ()))


def completes(key: str) -> Complete | None:
    """Return the function that completes the values of a key; None if any value may follow."""
    if key not in PLUGGED and key not in WORDS and key not in PATHS:
        return None

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(value) for value in values(key) if value.startswith(incomplete)]
        return names or ([CompletionItem(incomplete, type="file")] if key in PATHS else [])

    return complete


@click.command()
@click.argument("shell", type=click.Choice(list(LINES)))
def completion(shell: str) -> None:
    """Print the line that enables completion; add it to your shell's start-up file."""
    click.echo(LINES[shell])
