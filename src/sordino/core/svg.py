"""Small figures for notebooks, written as SVG: curves over rounds, dots on a scale, and the region of a guarantee.

They need no drawing library and no script. Text and axes take the colour of the page; the two colours of data can be
told apart on light and on dark pages and by people who do not see red and green.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

BLUE, ORANGE = "#3b82c4", "#d97706"
WIDTH, HEIGHT = 380, 190
LEFT, RIGHT, TOP, BOTTOM = 48, 60, 24, 34  # margins of the frame


@dataclass(frozen=True)
class Series:
    """Points that are joined by a line; the ends of its axis are named by `ends`."""

    name: str
    points: tuple[tuple[float, float], ...]
    low: float  # value at the bottom of the frame
    high: float  # value at its top
    ends: tuple[str, str]  # the two values as text


def scaled(name: str, points: Sequence[tuple[float, float]], form: str = ".3g", zero: bool = False) -> Series:
    """Return a series on an axis from its smallest (or from zero) to its largest value; other values are left out."""
    known = tuple((x, y) for x, y in points if math.isfinite(y))
    values = [y for _, y in known] or [0.0]
    low, high = (0.0 if zero else min(values)), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return Series(name, known, low, high, (f"{low:{form}}", f"{high:{form}}"))


def curves(first: Series | None, second: Series | None, last: int, label: str) -> str:
    """Return a figure of one series on the left axis and another, dashed, on the right axis.

    Args:
        first: the series of the left axis, or None.
        second: the series of the right axis, or None.
        last: the largest number on the horizontal axis, which begins at 1.
        label: what the horizontal axis counts.
    """
    parts = [_frame(), _text(LEFT, HEIGHT - 20, "1"), _text(WIDTH - RIGHT, HEIGHT - 20, str(last), "end")]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, label, "middle"))
    if second is not None:
        parts += _series(second, last, ORANGE, "5 3", WIDTH - RIGHT + 5, "start")
        parts.append(_legend(WIDTH / 2 + 20, second.name, ORANGE, "5 3"))
    if first is not None:
        parts += _series(first, last, BLUE, "", LEFT - 5, "end")
        parts.append(_legend(LEFT, first.name, BLUE, ""))
    names = " and ".join(s.name for s in (first, second) if s is not None)
    return figure(f"{names} by {label}", WIDTH, HEIGHT, parts)


def _series(series: Series, last: int, colour: str, dash: str, beside: float, anchor: str) -> list[str]:
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    span = max(last - 1, 1)
    at = [
        (LEFT + wide * (x - 1) / span, TOP + high * (series.high - y) / (series.high - series.low))
        for x, y in series.points
    ]
    low, top = series.ends
    ends = [_text(beside, TOP + 4, top, anchor), _text(beside, HEIGHT - BOTTOM, low, anchor)]
    dots = [_dot(x, y, colour) for x, y in at] if len(at) < 3 else [_dot(*at[-1], colour)]
    return [*ends, line(at, colour, dash), *dots]


def dots(rows: Sequence[tuple[str, float, float]], form: str, label: str) -> str:
    """Return one dot a row on a common scale, with its name at the left and a bar of one deviation to either side.

    Args:
        rows: names, values and deviations (nan: unknown).
        form: the format of a value as text.
        label: what the values are.
    """
    shown = [(name, value, 0.0 if math.isnan(spread) else spread) for name, value, spread in rows]
    low, high = min(v - s for _, v, s in shown), max(v + s for _, v, s in shown)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    start = 20 + 6.6 * max(len(name) for name, _, _ in shown)
    width, height = start + 320, 22 * len(shown) + 34
    parts = [line([(start, height - 26), (start + 250, height - 26)], "currentColor", "", 0.4)]
    parts += [_text(start, height - 10, f"{low:{form}}"), _text(start + 250, height - 10, f"{high:{form}}", "end")]
    parts.append(_text(start + 125, height - 10, label, "middle"))
    for k, (name, value, spread) in enumerate(shown):
        y = 16.0 + 22 * k
        x, reach = start + 250 * (value - low) / (high - low), 250 * spread / (high - low)
        parts += [_text(start - 10, y + 4, name, "end"), line([(x - reach, y), (x + reach, y)], BLUE, "", 0.6)]
        parts += [_dot(x, y, BLUE, 4), _text(start + 262, y + 4, f"{value:{form}}")]
    return figure(f"{label} by row: " + ", ".join(f"{n} {v:{form}}" for n, v, _ in shown), width, height, parts)


def square(points: Sequence[tuple[float, float]], across: str, upward: str) -> str:
    """Return a curve in the unit square, with the diagonal for comparison.

    Args:
        points: the corners of the curve, from left to right.
        across: what the horizontal axis shows.
        upward: what the vertical axis shows.
    """
    side, left, top = 130, 44, 10

    def place(x: float, y: float) -> tuple[float, float]:
        return left + side * x, top + side * (1 - y)

    corners = [place(0, 0), place(1, 0), place(1, 1), place(0, 1), place(0, 0)]
    middle = top + side / 2
    turned = f'<g transform="rotate(-90 12 {middle})">{_text(12, middle, upward, "middle")}</g>'
    parts = [line(corners, "currentColor", "", 0.4), line([place(0, 0), place(1, 1)], "currentColor", "2 3", 0.7)]
    parts += [line([place(x, y) for x, y in points], BLUE), turned]
    parts += [_text(left, top + side + 14, "0"), _text(left + side, top + side + 14, "1", "end")]
    parts += [_text(left - 5, top + side, "0", "end"), _text(left - 5, top + 10, "1", "end")]
    parts.append(_text(left + side / 2, top + side + 28, across, "middle"))
    return figure(f"{upward} by {across}", left + side + 30, top + side + 36, parts)


def figure(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """Return parts as one picture with a title for those who cannot see it."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
    style = 'style="max-width:100%;height:auto;font:11px sans-serif;color:inherit" role="img"'
    inside = f"<title>{escape(title)}</title>" + "".join(parts)
    return f'{head} height="{height:g}" {style}>{inside}</svg>'


def line(points: Sequence[tuple[float, float]], colour: str, dash: str = "", opacity: float = 1.0) -> str:
    """Return a line through points, given in pixels from the top left."""
    at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{2 if opacity == 1 else 1.2}" '
        f'stroke-linejoin="round" opacity="{opacity:g}"{dashes}/>'
    )


def _frame() -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    corners = [(LEFT, TOP), (LEFT, bottom), (right, bottom), (right, TOP)]
    return line([(float(x), float(y)) for x, y in corners], "currentColor", "", 0.4)


def _legend(x: float, text: str, colour: str, dash: str) -> str:
    return line([(x, 10.0), (x + 18, 10.0)], colour, dash) + _text(x + 23, 14, text)


def _dot(x: float, y: float, colour: str, size: int = 3) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'
