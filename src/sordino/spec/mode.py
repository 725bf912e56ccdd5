"""The default mode of a run: whether its noise comes from a seed (research) or from the operating system (secure).

In `research` mode the noise is drawn from a seed, so an experiment can be repeated; anyone who knows the seed can
subtract the noise. In `secure` mode it is drawn from the operating system. The guarantee of a run on the user's own
data should hold as stated, so secure is the default there; a shipped benchmark is public and made for experiments.
Set-up that does not depend on the values of any record (partition, initial weights) comes from a public stream in both
modes.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.spec.spec import Spec


def settled(spec: Spec, public: bool) -> Spec:
    """Return the spec with its mode set: if left open, research with a seed or on public data, else secure.

    Giving a seed is a choice: the user wants a run that can be repeated, and the sentence of its guarantee says what
    that costs.
    """
    if spec.mode is not None:
        return spec
    return replace(spec, mode="research" if public or spec.seed is not None else "secure")
