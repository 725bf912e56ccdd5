"""The errors of a secure sum and of a shuffler; no message contains a secret."""

from __future__ import annotations

from sordino.core.errors import RunError


class MaskingError(RunError):
    """A party of a secure sum or a shuffler refuses a message or a step."""


class RegisterError(MaskingError):
    """The register of answers cannot be read or written; the text names a file, and is for its owner alone."""


class NoShuffler(MaskingError):  # noqa: N818 (the name reads better without a suffix)
    """A shuffler does not answer at its address."""


class TooFew(RunError):  # noqa: N818 (the name reads better without a suffix)
    """A secure sum is lost, because fewer members than the threshold remain or their shares do not fit."""
