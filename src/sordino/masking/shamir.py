"""Shamir's secret sharing: any `threshold` of n shares rebuild a secret of 32 bytes, and fewer say nothing about it.

Shamir (1979), "How to share a secret".  The field has p = 2^256 + 297 elements, the smallest prime above 2^256, so that
every string of 32 bytes is an element of it. Share x (1 <= x <= n) is the value at x of a random polynomial of degree
threshold - 1 whose value at 0 is the secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import numpy as np

from sordino.masking.errors import MaskingError

PRIME = 2**256 + 297
SIZE = 33  # bytes of a share


def deal(secret: bytes, threshold: int, shares: int) -> list[bytes]:
    """Return the shares 1 to `shares` of a secret; all points are evaluated at once by Horner's rule."""
    if len(secret) != 32:
        raise MaskingError(f"a secret to share has 32 bytes, not {len(secret)}.")
    if not 1 <= threshold <= shares:
        raise MaskingError(f"a threshold of {threshold} for {shares} shares cannot be met.")
    points = np.arange(1, shares + 1).astype(object)
    values = np.zeros(shares, dtype=object)
    for _ in range(threshold - 1):
        values = (values + secrets.randbelow(PRIME)) * points % PRIME
    values = (values + int.from_bytes(secret, "little")) % PRIME
    return [int(value).to_bytes(SIZE, "little") for value in values]


def weights(points: Sequence[int]) -> dict[int, int]:
    """Return the Lagrange coefficients at 0 for distinct points: the secret is the weighted sum of the shares there."""
    if len(set(points)) < len(points):
        raise MaskingError("two shares belong to the same point.")
    if not all(0 < x < PRIME for x in points):
        raise MaskingError("a share belongs to a point from 1 to n.")
    out = {}
    for x in points:
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        out[x] = above * pow(below, -1, PRIME) % PRIME
    return out


def rebuild(shares: Mapping[int, bytes], threshold: int, coefficients: Mapping[int, int] | None = None) -> bytes:
    """Return the secret of exactly `threshold` shares.

    Args:
        shares: share by point.
        threshold: the number of shares that the secret was dealt for.
        coefficients: `weights` of these points, to rebuild several secrets from the same points.
    """
    if len(shares) != threshold:
        raise MaskingError(f"a secret with the threshold {threshold} cannot be rebuilt from {len(shares)} shares.")
    coefficients = weights(list(shares)) if coefficients is None else coefficients
    total = sum(coefficients[x] * number(share) for x, share in shares.items()) % PRIME
    if total >= 2**256:
        raise MaskingError("the shares do not belong to one secret.")
    return total.to_bytes(32, "little")


def number(share: bytes) -> int:
    """Return the field element of a share."""
    value = int.from_bytes(share, "little")
    if len(share) != SIZE or value >= PRIME:
        raise MaskingError("a share is not an element of the field.")
    return value
