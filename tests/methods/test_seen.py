"""What a released update looks like behind its noise: strength, share of coordinates, tail."""

from __future__ import annotations

import math

import pytest
import torch

from sordino.methods.udp_fl import harmonizer, words
from sordino.methods.udp_fl.seen import LAPLACE, NORMAL, ReleasedStatistics, of_law, seen

N = 200_000


def law(name, n=N, seed=0):
    """Draws of variance one."""
    draw = torch.Generator().manual_seed(seed)
    if name == "two points":
        return torch.sign(torch.randn(n, generator=draw, dtype=torch.float64))
    if name == "normal":
        return torch.randn(n, generator=draw, dtype=torch.float64)
    u = torch.rand(n, generator=draw, dtype=torch.float64) - 0.5
    if name == "uniform":
        return math.sqrt(12) * u
    return -torch.sign(u) * torch.log1p(-2 * u.abs()) / math.sqrt(2)  # laplace


def released(name, density, noise, n=N):
    draw = torch.Generator().manual_seed(9)
    there = torch.rand(n, generator=draw, dtype=torch.float64) < density
    return law(name, n) * there / density**0.5 + noise * torch.randn(n, generator=draw, dtype=torch.float64)


TAILS = {"two points": 1.0, "uniform": 25 / 21, "normal": NORMAL, "laplace": LAPLACE}
KURTOSIS = {"two points": 1.0, "uniform": 9 / 5, "normal": 3.0, "laplace": 6.0}


@pytest.mark.parametrize("name", TAILS)
def test_a_tail_tells_the_law(name):
    x = law(name)
    assert float((x**6).mean() * (x**2).mean() / (x**4).mean() ** 2) == pytest.approx(TAILS[name], rel=0.05)
    assert of_law(TAILS[name]) == pytest.approx(KURTOSIS[name], rel=1e-3)


@pytest.mark.parametrize("density", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("name", TAILS)
def test_share_and_tail_are_told_apart(name, density):
    """Sparse and heavy-tailed both have a large kurtosis; the two figures differ."""
    look = seen(released(name, density, 0.5), 0.25, 0.0)
    assert look.visible and look.signal == pytest.approx(4.0, rel=0.05)
    assert look.kurtosis == pytest.approx(KURTOSIS[name] / density, rel=0.15)
    assert look.tail == pytest.approx(TAILS[name], rel=0.2)
    assert look.density == pytest.approx(density, rel=0.35)
    naive = min(1.0, 3 / look.kurtosis)  # which takes every law for normal
    if name in ("two points", "laplace") and density < 0.5:
        assert abs(math.log(naive / density)) > 1.3 * abs(math.log(look.density / density))


@pytest.mark.parametrize("density", [0.25, 0.05])
def test_they_are_corrected_for_the_noise(density):
    update = released("normal", density, 1.5)
    right, wrong = seen(update, 2.25, 0.0), seen(update, 1e-12, 0.0)
    assert right.density == pytest.approx(density, rel=0.3) and wrong.density > 2 * density


def test_laplace_noise_is_not_taken_for_a_tail():
    noise = law("laplace", seed=3)
    update = released("normal", 1.0, 0.0) + noise
    right, wrong = seen(update, 1.0, 3.0), seen(update, 1.0, 0.0)
    assert right.kurtosis == pytest.approx(3.0, rel=0.1) and wrong.kurtosis > 5
    assert right.data == "dense" and right.density > 0.8


def test_a_tail_that_cannot_be_seen_is_not_claimed():
    few = seen(released("normal", 0.3, 1.5, n=3000), 2.25, 0.0)
    assert few.visible and few.tail is None and few.density == pytest.approx(min(1.0, 3 / few.kurtosis), rel=1e-4)
    nothing = seen(1.5 * law("normal", 10_000), 2.25, 0.0)
    assert nothing == ReleasedStatistics(nothing.signal, 3.0, False) and nothing.data is None


@pytest.mark.parametrize("unit", [1e-30, 1e20])
def test_units_do_not_matter(unit):
    one, other = (
        seen(released("normal", 0.3, 0.5), 0.25, 0.0),
        seen(unit * released("normal", 0.3, 0.5), 0.25 * unit**2, 0),
    )
    assert other.density == pytest.approx(one.density) and other.tail == pytest.approx(one.tail)


@pytest.mark.parametrize(
    ("name", "density", "row"),
    [("normal", 1.0, "dense"), ("uniform", 0.9, "dense"), ("normal", 0.1, "sparse"), ("laplace", 0.8, "sparse")],
)
def test_the_row_of_table_2(name, density, row):
    look = seen(released(name, density, 0.5), 0.25, 0.0)
    assert look.data == row and row in harmonizer.DATA


def test_what_is_said_of_it():
    candidate = {"candidates": [{"mechanism": "gaussian"}]}
    found = {"mechanism": "gaussian", "next": candidate}
    look = vars(seen(released("normal", 0.05, 0.5), 0.25, 0.0))
    (said,) = words.looked(4, found | {"seen": look})
    assert "Round 4" in said and "% of the coordinates carry it" in said and "like a normal law's" in said
    assert "gaussian stays." in said
    heavy = vars(seen(released("laplace", 0.3, 0.5), 0.25, 0.0))
    assert "like a Laplace law's" in words.looked(4, found | {"seen": heavy})[0]
    blind = vars(ReleasedStatistics(0.01, 3.0, False))
    assert "too little to judge by" in words.looked(4, found | {"seen": blind})[0]
