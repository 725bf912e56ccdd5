"""What is asked of a device: small tensors that nothing waits for, and kernels that are tried before use."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the processor on the device.

    An ordinary copy to a GPU waits until the GPU has done all it was asked before; one from pinned memory does not.
    """
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def trusted(known_answers: Callable[[torch.device], bool], device: torch.device, otherwise: str) -> bool:
    """Return whether kernels run on a device and give known answers there.

    If they raise an error, a warning says what happens `otherwise`; without Triton nothing is said.
    """
    if device.type != "cuda":
        return False
    try:
        return known_answers(device)
    except ImportError:
        return False
    except Exception as error:  # what a compiler or a driver may raise
        warnings.warn(f"{otherwise} ({type(error).__name__}: {error}).", stacklevel=3)
        return False
