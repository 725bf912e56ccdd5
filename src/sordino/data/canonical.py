"""Canonical forms of raw rows, which do not depend on the encoding, the order of columns or the last digits.

A row is written as 64-bit words, one per cell. A number is rounded to six significant digits, or to four in rows of
more than 32 cells, since among many numbers one is likely to lie close to a rounding boundary. Anything else is hashed
after stripping its text. So 1, "1" and "1.0" give the same word, and "1,5" the word of 1.5.

The rows of a table have up to three forms:

- the cells by column name without the label, since labels may be renamed;
- the same with the label, since another column may be the label next time;
- if all input columns of the model are numbers, their values in ascending order, since columns may be flipped and a
  table may come back as arrays. This is the only form of arrays and images.

Only forms of the same kind are compared; see ledger/units.py.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.data.text_tables import COMMA

Words = NDArray[np.uint64]
DIGITS = 6
SAMPLE = 4096  # number of rows used to estimate whether rows can be told apart
MARGIN = 10.0  # bits required beyond 2 log2(rows), so that no pair of rows of two such tables agrees by chance
WIDE = 32  # rows with more cells than this are rounded to four digits
NETWORK = 64  # rows up to this width are sorted by comparing whole columns
TEXT = np.uint64(1) << np.uint64(63)  # the top bit marks the hash of a text
ZERO = 1 << 62  # the word of the number 0
# Indexed by the biased exponent e of a double: 10^_LOW[e] <= 2^(e - 1023). Finite numbers are below 2^1024.
_LOW = [math.floor((e - 1023) * math.log10(2)) for e in range(2048)]
_SCALE = np.array([10.0 ** (DIGITS - 1 - low) if low > -300 else 0.0 for low in _LOW])
_PLACE = np.array([(low + 400) << 20 if low > -300 else 0 for low in _LOW], dtype=np.int64)


@dataclass(frozen=True)
class Form:
    """One canonical way to write all rows."""

    kind: str  # forms of the same kind can be compared
    rows: int
    block: Callable[[int, int], Words]  # block(a, b) returns rows a to b as uint64 [rows, width]
    bits: float  # upper estimate of the information in a row

    def tells_apart(self) -> bool:
        """Return whether the columns vary enough that rows that agree belong to the same person.

        The probability that two rows agree in a column is estimated from pairs of at most 4096 rows, and its negative
        logarithms (base 2) are added over the columns. The sum must exceed 2 log2(n), the logarithm of the number of
        pairs between two tables of n rows, by ten bits, so that no pair agrees by chance.
        """
        return self.bits >= 2 * math.log2(max(2, self.rows)) + MARGIN


@dataclass(frozen=True)
class Raw:
    """All private rows in all their forms, and for each row the id of its user and its client as text."""

    forms: tuple[Form, ...]
    users: NDArray[Any] | None = None
    clients: NDArray[Any] | None = None


# --- words


def numbers(values: NDArray[Any]) -> Words:
    """Encode finite numbers as words with six significant digits.

    The order of the words is that of the numbers. Magnitudes below about 1e-299 count as zero.
    """
    if values.dtype == np.bool_ or values.dtype == np.uint8:
        return numbers(np.arange(256, dtype=np.float64))[values.astype(np.uint8)]
    flat, out = values.reshape(-1), np.empty(values.size, np.int64)
    for start in range(0, len(flat), 1 << 14):  # blocks that fit into the cache
        part = flat[start : start + (1 << 14)].astype(np.float64)
        sign = part.view(np.int64) >> 63  # 0 or -1
        np.abs(part, out=part)
        exponent = part.view(np.int64) >> 52
        part *= _SCALE.take(exponent, mode="clip")  # 10^5 to 10^7
        over = part >= 10**DIGITS - 0.5
        part = np.where(over, part * 0.1, part)
        part += 2.0**52  # rounds, and puts the integer into the last bits
        word = part.view(np.int64) & (2**52 - 1)
        word |= _PLACE.take(exponent, mode="clip")
        word += over.astype(np.int64) << 20
        word ^= sign
        word -= sign
        word += ZERO
        out[start : start + (1 << 14)] = word
    return out.view(np.uint64).reshape(values.shape)


def coarse(words: Words) -> Words:
    """Round the words of numbers to four significant digits; words of texts are unchanged."""
    value = words.view(np.int64) - ZERO
    size = np.abs(value)
    digits, place = ((size & (2**20 - 1)) + 50) // 100, size >> 20
    over = digits == 10**4
    digits, place = np.where(over, 10**3, digits), place + over
    rounded = (ZERO + np.sign(value) * ((place << 20) | digits)).view(np.uint64)
    return np.where(words >= TEXT, words, rounded)


def texts(values: Sequence[str]) -> Words:
    """Encode texts as words by hashing them, after stripping white space."""
    hashes = [int.from_bytes(hashlib.blake2b(v.strip().encode(), digest_size=8).digest(), "little") for v in values]
    return np.array(hashes, dtype=np.uint64) | TEXT


def column(cells: Any) -> tuple[Words, bool]:
    """Encode a pandas column as words, and return them with whether all cells are numbers."""
    import pandas as pd

    if cells.dtype.kind in "iufb":
        values = cells.to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isfinite(values).all():
            return numbers(values), True
    codes, distinct = pd.factorize(cells, use_na_sentinel=False)
    shown = ["" if pd.isna(v) else str(v) for v in distinct]
    shown = [v.replace(",", ".") if COMMA.fullmatch(v) else v for v in shown]
    values = pd.to_numeric(pd.Series(shown, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    plain = np.isfinite(values)
    words = np.empty(len(shown), np.uint64)
    words[plain] = numbers(values[plain])
    words[~plain] = texts([shown[i] for i in np.flatnonzero(~plain)])
    return words[codes], bool(plain.all())


def ids(values: Any) -> NDArray[Any]:
    """Return the ids of users or clients as text, one per row; 1 and 1.0 both become "1"."""
    names = [str(v).strip() for v in np.asarray(values).tolist()]
    return np.array([v[:-2] if v.endswith(".0") and v[:-2].lstrip("-").isdigit() else v for v in names], dtype=object)


def telling(names: Sequence[str]) -> bool:
    """Return whether ids identify people beyond one table, unlike "1", "2", "P03" or "site-b".

    The varying part of the ids, without their common prefix, must hold as many bits as Form.tells_apart requires of
    rows. A digit counts log2(10) bits and any other character 2, as in words and names; the median over the distinct
    ids is used.
    """
    distinct = sorted(set(names))
    if len(distinct) < 2:
        return False
    first, last = distinct[0], distinct[-1]
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    rest = [name[common:] for name in distinct]
    each = sorted(sum(math.log2(10) if c.isdigit() else 2.0 for c in text) for text in rest)
    return each[len(each) // 2] >= 2 * math.log2(len(distinct)) + MARGIN


# --- forms


def of_table(
    cells: Any,
    label: str | None,
    split: str | None,
    user: str | None,
    client: str | None,
    inputs: Sequence[str] = (),
) -> Raw:
    """Return the forms of the rows of a table.

    Args:
        cells: A pandas table.
        label: Name of the label column.
        split: Name of the column that marks test rows; it is left out of every form.
        user: Name of the user column.
        client: Name of the client column.
        inputs: Names of the input columns of the model; by default all columns without a role.
    """
    columns = {str(c): column(cells[c]) for c in cells.columns if c != split}
    bare = [c for c in columns if c not in (label, user, client)]  # so that new pseudonyms do not change the form
    made = [_by_name(bare, columns, len(cells)), _by_name(list(columns), columns, len(cells))]
    inputs = list(inputs) or bare
    if inputs and all(columns[c][1] for c in inputs):
        made.append(_by_size(lambda a, b: np.stack([columns[c][0][a:b] for c in inputs], 1), len(cells), len(inputs)))
    who = [None if c is None else ids(cells[c].to_numpy()) for c in (user, client)]
    return Raw(tuple(form for form in made if form is not None), *who)


def of_arrays(*parts: Any, users: Any = None, clients: Any = None) -> Raw:
    """Return the form of arrays, tensors or images [rows, ...], concatenated; their columns have no names."""
    arrays = [np.asarray(p.detach().cpu().numpy() if hasattr(p, "detach") else p) for p in parts]
    flat = [a.reshape(len(a), -1) for a in arrays if len(a)]
    rows, width = sum(map(len, flat)), flat[0].shape[1] if flat else 0
    form = _by_size(partial(_part, flat), rows, width)
    who = [None if v is None else ids(v) for v in (users, clients)]
    return Raw(() if form is None else (form,), *who)


def _part(flat: list[NDArray[Any]], a: int, b: int) -> Words:
    blocks = []
    for array in flat:
        if a < len(array) and b > 0:
            blocks.append(numbers(array[max(a, 0) : b]))
        a, b = a - len(array), b - len(array)
    return np.concatenate(blocks)


def _by_name(names: list[str], columns: dict[str, tuple[Words, bool]], rows: int) -> Form | None:
    if not names:
        return None
    chosen = [columns[c][0] if len(names) <= WIDE else coarse(columns[c][0]) for c in sorted(names)]
    listed = hashlib.blake2b("\0".join(sorted(names)).encode(), digest_size=8).hexdigest()
    bits = math.fsum(_bits(c[_some(rows)]) for c in chosen)
    return Form(f"columns {listed}", rows, lambda a, b: np.stack([c[a:b] for c in chosen], 1), bits)


def _by_size(block: Callable[[int, int], Words], rows: int, width: int) -> Form | None:
    if not rows or not width:
        return None
    step = max(1, rows // SAMPLE)
    words = block if width <= WIDE else lambda a, b: coarse(block(a, b))
    sample = np.concatenate([words(a, a + 1) for a in range(0, rows, step)]) if step > 1 else words(0, rows)
    bits = math.fsum(_bits(c) for c in sample.T)
    values = max(len(np.unique(sample)), 2 ** _bits(sample.reshape(-1)))
    # log of the number of multisets of `width` values: sorting leaves no more information than that
    most = math.lgamma(width + values) - math.lgamma(width + 1) - math.lgamma(values)
    return Form(f"values {width}", rows, lambda a, b: _sorted(words(a, b)), min(bits, most / math.log(2)))


def _some(rows: int) -> NDArray[np.int64]:
    return np.arange(0, rows, max(1, rows // SAMPLE))


def _bits(words: Words) -> float:
    """Return -log2 of the probability that two rows agree in this column, with one added to both counts of pairs."""
    times = np.unique(words, return_counts=True)[1].astype(np.float64)
    pairs = len(words) * (len(words) - 1) / 2
    return max(0.0, math.log2((pairs + 1) / (float((times * (times - 1)).sum()) / 2 + 1)))


def _sorted(words: Words) -> Words:
    """Sort the words of every row in ascending order."""
    width = words.shape[1]
    if width > NETWORK:
        return np.sort(words, axis=1)
    columns = list(np.ascontiguousarray(words.T))
    step = 1
    while step < width:  # Batcher's odd-even merge sort: the same comparisons for every row
        gap = step
        while gap >= 1:
            for start in range(gap % step, width - gap, 2 * gap):
                for i in range(start, min(start + gap, width - gap)):
                    if i // (2 * step) == (i + gap) // (2 * step):
                        a, b = columns[i], columns[i + gap]
                        columns[i], columns[i + gap] = np.minimum(a, b), np.maximum(a, b)
            gap //= 2
        step *= 2
    return np.stack(columns, 1)
