"""Research or secure: where a run's noise comes from when nobody said.

`research` draws from a seed, so that an experiment repeats; whoever knows the seed can subtract the noise. `secure`
draws from the operating system. The promise of a run on one's own data should hold as it stands, so secure is the
default there; a shipped benchmark is public and made for experiments. Set-up that depends on no record's values
(partition, first weights) comes from a public stream in both.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.runs.spec import Spec


def settled(spec: Spec, public: bool) -> Spec:
    """Decide the mode that was left open: research with a seed or on public data, else secure.

    A seed is a choice: whoever gives one wants a run that repeats, and its sentence says what that costs."""
    if spec.mode is not None:
        return spec
    return replace(spec, mode="research" if public or spec.seed is not None else "secure")
