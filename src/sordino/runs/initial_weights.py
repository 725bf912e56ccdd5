"""Initial weights from a file: read and checked before anything is charged, and named by the guarantee.

A run starts from the weights of a .safetensors file instead of random ones (key `initial_weights`). What they were made
from cannot be read off the file, so it is asked (key `initial_weights_from`):

    public  they were made from public data, or from no data at all. The guarantee holds as it is, and its sentence says
            so: "Taken as public: ...; the initial weights (sha256 ...), said to come from public data". The name of
            the file stays with its owner, as all names of files do
    own     they were trained on training records of this run. Nobody has accounted for what they hold, so the run has
            no guarantee: its epsilon is infinite, in the ledger too, however much noise the rounds add

Whoever declares weights public that are not answers for it, as with every other public fact of the sentence."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from sordino.core.errors import ModelError, SpecError
from sordino.privacy.events import Event, NonPrivate
from sordino.spec.spec import Spec

SHOWN = 16  # digits of the hash in a sentence


@dataclass(frozen=True)
class InitialWeights:
    """The file that a model started from, and whose data it is said to come from."""

    sha256: str  # of the file
    source: str  # public or own

    @property
    def public(self) -> bool:
        """Whether the weights are declared public."""
        return self.source == "public"

    @property
    def named(self) -> str:
        """The weights in words."""
        return f"the initial weights (sha256 {self.sha256[:SHOWN]})"

    def assumed(self) -> tuple[str, ...]:
        """Return what the guarantee treats as public, in words."""
        return (f"{self.named}, said to come from public data",) if self.public else ()

    def events(self) -> tuple[Event, ...]:
        """Return what the weights themselves release of the training records."""
        if self.public:
            return ()
        return (NonPrivate(f"{self.named} were trained on training records of this run, which nobody accounted for"),)

    def notes(self, spec: Spec) -> tuple[str, ...]:
        """Return what whoever starts the run should know."""
        if self.public or not spec.method_object().private:
            return ()
        return (
            f"the noise is that of epsilon = {spec.epsilon:g} for the rounds alone: {self.named} come from the same "
            "records without a guarantee, so the run as a whole has none",
        )


def check_keys(spec: Spec) -> None:
    """Raise SpecError unless weights and their source come together, and with keys that they go with."""
    if spec.initial_weights is None:
        if spec.initial_weights_from is not None:
            raise SpecError("initial_weights_from says what initial_weights were made from: give both, or neither.")
        return
    if spec.initial_weights_from is None:
        raise SpecError(
            "initial_weights needs initial_weights_from: public (they were made from public data, or from none) or own "
            "(from training records of this run, which then has no guarantee)."
        )
    if spec.initial_weights_from == "own" and spec.budgets is not None:
        raise SpecError(
            "budgets of clients cannot be kept with initial_weights_from = own, as such a run has no guarantee. Drop "
            "one of the two."
        )


def loaded(spec: Spec, module: nn.Module) -> InitialWeights | None:
    """Load the weights that a spec names into the module; nothing in it changes if they do not fit."""
    check_keys(spec)
    if spec.initial_weights is None:
        return None
    path = Path(spec.initial_weights)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"initial_weights: cannot read {path}: {why}. Give a .safetensors file.") from error
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"initial_weights: {path} is no safetensors file ({error}). Write one with safetensors.torch.save_file."
        ) from error
    weights = _fitting(path, tensors, module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(weights[name])
    return InitialWeights(hashlib.sha256(data).hexdigest(), str(spec.initial_weights_from))


def _fitting(path: Path, tensors: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Return the weights in the types of the parameters; raise ModelError with the first one that does not fit."""
    parameters = dict(module.named_parameters())
    out = {}
    for name, parameter in parameters.items():
        given = tensors.get(name)
        if given is None:
            raise ModelError(f"initial_weights: {path} has no {name}, which is a parameter of the model.")
        if given.shape != parameter.shape:
            raise ModelError(
                f"initial_weights: in {path}, {name} has shape {list(given.shape)}; the model's has "
                f"{list(parameter.shape)}."
            )
        if not given.is_floating_point():
            raise ModelError(f"initial_weights: in {path}, {name} has type {given.dtype}, not a floating point one.")
        out[name] = given.to(parameter.dtype)
        if not bool(torch.isfinite(out[name]).all()):
            raise ModelError(f"initial_weights: in {path}, {name} holds values that are not finite.")
    if strange := [name for name in tensors if name not in parameters]:
        raise ModelError(
            f"initial_weights: {path} holds {strange[0]}, which is no parameter of the model. Give a file with the "
            "parameters of this model alone."
        )
    return out
