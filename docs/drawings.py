"""Write the drawings of the concept pages into docs/drawings.

python docs/drawings.py

A drawing is an SVG file that follows the reader's choice of dark or light: by its own style where it is an image, as on
a code host, and by docs/_static/drawings.css on the site, where docs/conf.py puts it into the page itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

from sordino.accounting import Gaussian, Repeated, epsilon

FOLDER = Path(__file__).parent / "drawings"
SHEET = Path(__file__).parent / "_static" / "drawings.css"
CLASSES = """.drawing text { font-family: system-ui, sans-serif; font-size: 14px; fill: var(--d-ink); }
.drawing .title { font-weight: 600; }
.drawing .small { font-size: 12.5px; fill: var(--d-dim); }
.drawing .centre { text-anchor: middle; }
.drawing .box { fill: var(--d-box); stroke: var(--d-edge); }
.drawing .row { fill: var(--d-row); }
.drawing .marked { fill: var(--d-marked); }
.drawing .other { fill: var(--d-other); }
.drawing .gone { fill: none; stroke: var(--d-marked); stroke-dasharray: 4 3; }
.drawing .line { fill: none; stroke: var(--d-dim); stroke-width: 1.5; }
.drawing .strong { fill: none; stroke: var(--d-marked); stroke-width: 2.5; }
.drawing .weak { fill: none; stroke: var(--d-other); stroke-width: 2.5; }
.drawing .dash { stroke-dasharray: 5 4; }
.drawing .tip { fill: var(--d-dim); }
"""
NAMES = ("ink", "dim", "box", "edge", "row", "marked", "other")
LIGHT = ("#1f2328", "#57606a", "#f6f8fa", "#afb8c1", "#c9d1d9", "#0b66c3", "#b35900")
DARK = ("#e6edf3", "#9aa4ae", "#1c2128", "#56606b", "#444c56", "#58a6ff", "#e3933b")


def rule(where: str, colours: tuple[str, ...]) -> str:
    """Return the rule that gives the colours of a drawing."""
    return where + " { " + " ".join(f"--d-{name}: {value};" for name, value in zip(NAMES, colours, strict=True)) + " }"


def style() -> str:
    """Return the style of a drawing that is an image."""
    dark = rule(".drawing", DARK)
    return f"{rule('.drawing', LIGHT)}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n{CLASSES}"


def sheet() -> str:
    """Return the style of all drawings inside pages of the site, whose theme the reader can choose."""
    dark, system = rule('body[data-theme="dark"] .drawing', DARK), rule('body:not([data-theme="light"]) .drawing', DARK)
    return "\n".join([
        "/* Written by docs/drawings.py. */",
        rule(".drawing", LIGHT), dark,
        f"@media (prefers-color-scheme: dark) {{ {system} }}",
        f"@media print {{ {rule('body[data-theme] .drawing', LIGHT)} }}",
        ".drawing-frame { overflow-x: auto; margin: 1.5rem 0; }",
        ".drawing-frame svg { display: block; width: 100%; min-width: 500px; max-width: 640px; margin: 0 auto; }",
        CLASSES,
    ])  # fmt: skip


def text(x: float, y: float, words: str, look: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{look}">{words}</text>'


def box(x: float, y: float, width: float, height: float, look: str = "box", round: float = 4) -> str:
    """Return a rectangle with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round:g}" class="{look}"/>'


def arrow(x: float, y: float, to_x: float, to_y: float, look: str = "line") -> str:
    """Return an arrow with a small tip."""
    angle = math.atan2(to_y - y, to_x - x)
    tip = [(to_x - 9 * math.cos(angle + turn), to_y - 9 * math.sin(angle + turn)) for turn in (0.4, -0.4)]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in [(to_x, to_y), *tip])
    end = (to_x - 7 * math.cos(angle), to_y - 7 * math.sin(angle))
    return f'<path d="M{x:g} {y:g} L{end[0]:.1f} {end[1]:.1f}" class="{look}"/><polygon points="{points}" class="tip"/>'


def curve(points: Iterable[tuple[float, float]], look: str) -> str:
    """Return a line through points."""
    return f'<path d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}" class="{look}"/>'


def eye(x: float, y: float) -> str:
    """Return an eye, the sign of a viewer."""
    lids = f"M{x - 13:g} {y:g} q13 -13 26 0 q-13 13 -26 0 Z"
    return f'<path d="{lids}" class="line"/><circle cx="{x:g}" cy="{y:g}" r="4" class="other"/>'


def crossing(x: float, y: float) -> str:
    """Return two lines that cross, the sign of a shuffler."""
    return f'<path d="M{x - 8:g} {y - 8:g} l16 16 m0 -16 l-16 16" class="line"/>'


def unit() -> tuple[int, str, list[str]]:
    """Draw what one unit is: a record, a user, a client."""
    who = ("AABC", "ADEE")  # whose rows the two hospitals hold
    panels: list[tuple[str, tuple[str, str], Callable[[int, int], bool]]] = [
        ("record", ("one row", "of one hospital"), lambda place, row: (place, row) == (0, 0)),
        ("user", ("all rows of patient A,", "in both hospitals"), lambda place, row: who[place][row] == "A"),
        ("client", ("all rows", "of one hospital"), lambda place, row: place == 0),
    ]
    out = []
    for k, (name, words, inside) in enumerate(panels):
        left = 10 + 185 * k
        out.append(text(left + 85, 22, f"unit = {name}", "title centre"))
        for place in range(2):
            x = left + 88 * place
            out += [box(x, 36, 82, 142), text(x + 41, 54, f"hospital {place + 1}", "small centre")]
            for row, patient in enumerate(who[place]):
                look = "marked" if inside(place, row) else "row"
                out += [text(x + 8, 81 + 26 * row, patient, "small"), box(x + 23, 68 + 26 * row, 51, 17, look, 3)]
        out += [text(left + 85, 200, words[0], "centre"), text(left + 85, 219, words[1], "centre")]
    return 232, "Two hospitals with rows of patients A to E; what one unit covers: a row, a patient, a hospital.", out


def relation() -> tuple[int, str, list[str]]:
    """Draw the two relations, and what they change in a sum of clipped rows."""
    out = []
    for k, (name, sums) in enumerate(
        (("added or removed", "moves by at most C"), ("replaced", "moves by at most 2 C"))
    ):
        left = 15 + 285 * k
        out.append(text(left + 122, 22, name, "title centre"))
        for side in range(2):
            x = left + 134 * side
            out.append(box(x, 36, 110, 142))
            for row in range(5):
                look = "row" if row != 2 else "marked" if side == 0 else ("gone", "other")[k]
                out.append(box(x + 12, 47 + 25 * row, 86, 17, look, 3))
        out.append(text(left + 122, 112, "~", "title centre"))
        out += [text(left + 122, 202, "the sum of clipped rows", "centre"), text(left + 122, 220, sums, "centre")]
        start = left + 122 - 50 * (k + 1)
        out += [arrow(start, 242, start + 100 * (k + 1), 242), f'<circle cx="{start}" cy="242" r="4" class="marked"/>']
        out += [f'<path d="M{start + 100 * j} 237 v10" class="line"/>' for j in range(1, k + 1)]
        out += [text(start + 100 * j + 50, 262, "C", "small centre") for j in range(k + 1)]
    return 270, "Two data sets that differ in one row: missing in the one, or another row in its place.", out


def viewer() -> tuple[int, str, list[str]]:
    """Draw who can look at a round, and from where."""
    out = [text(85, 22, "clients", "title centre"), text(275, 22, "server", "title centre")]
    out.append(text(480, 22, "everyone else", "title centre"))
    for k in range(4):
        y = 38 + 56 * k
        out += [box(30, y, 110, 42), text(44, y + 26, f"client {k + 1}"), arrow(143, y + 21, 215, 110 + 14 * k)]
    out += [
        box(218, 84, 114, 94),
        text(275, 116, "collects the", "small centre"),
        text(275, 133, "messages, forms", "small centre"),
    ]
    out += [text(275, 150, "the next model", "small centre"), arrow(335, 131, 420, 131)]
    out += [text(376, 118, "the model of", "small centre"), text(376, 150, "each round", "small centre")]
    out += [box(423, 84, 114, 94), text(480, 135, "the public", "centre")]
    out += [eye(120, 227), eye(275, 198), eye(480, 198)]
    out += [text(85, 283, "viewer = client", "title centre"), text(85, 302, "the models, and whether", "small centre")]
    out += [text(85, 318, "it was drawn itself", "small centre")]
    out += [text(275, 232, "viewer = server", "title centre"), text(275, 251, "each message, and who", "small centre")]
    out += [
        text(275, 267, "takes part; server+2 adds", "small centre"),
        text(275, 283, "what two clients know", "small centre"),
    ]
    out += [text(480, 232, "viewer = public", "title centre"), text(480, 251, "the models alone; who", "small centre")]
    out += [text(480, 267, "was drawn stays secret", "small centre")]
    return 328, "Clients send messages to a server, which publishes models; three eyes look from different places.", out


def channel() -> tuple[int, str, list[str]]:
    """Draw what the server sees through each channel."""
    out = []
    panels = [
        ("direct", "every message,", "with its sender"),
        ("secure sum", "the sum of the messages,", "and who took part"),
        ("shuffler", "all messages,", "in a random order"),
    ]
    widths = (40, 22, 31)
    for k, (name, first, second) in enumerate(panels):
        left = 10 + 185 * k
        out.append(text(left + 85, 22, name, "title centre"))
        for row, width in enumerate(widths):
            y = 44 + 34 * row
            out += [
                text(left, y + 13, f"{row + 1}", "small"),
                box(left + 13, y, width, 17, ("marked", "other", "row")[row], 3),
            ]
        top, order = 44, {0: (0, 1, 2), 1: (), 2: (2, 0, 1)}[k]
        if k == 0:
            out += [arrow(left + 60, top + 8 + 34 * j, left + 112, top + 8 + 34 * j) for j in range(3)]
        else:
            out += [arrow(left + 57, top + 8 + 34 * j, left + 74, top + 42 + 8 * (j - 1)) for j in range(3)]
            out += [
                box(left + 75, 60, 28, 68, "box"),
                text(left + 89, 99, "+", "title centre") if k == 1 else crossing(left + 89, 94),
            ]
        for place, row in enumerate(order):
            y = top + 34 * place
            if k == 2:
                out.append(arrow(left + 104, top + 42 + 8 * (place - 1), left + 122, y + 8))
                out.append(text(left + 126, y + 13, "?", "small"))
            else:
                out.append(text(left + 118, y + 13, f"{row + 1}", "small"))
            out.append(box(left + 137 - 7 * (k == 0), y, widths[row], 17, ("marked", "other", "row")[row], 3))
        if k == 1:
            out += [
                arrow(left + 104, 94, left + 122, 94),
                box(left + 125, 80, 44, 28),
                text(left + 147, 99, "sum", "small centre"),
            ]
        out.append(eye(left + 85, 168))
        out += [text(left + 85, 200, "the server sees", "small centre")]
        out += [text(left + 85, 221, first, "centre"), text(left + 85, 240, second, "centre")]
    return 252, "Three clients send a message each: through a direct channel, a secure sum and a shuffler.", out


def total() -> tuple[int, str, list[str]]:
    """Draw the epsilon of twenty rounds together, beside the sum of their epsilons."""
    low, high = 1.0, 100.0
    while high - low > 1e-6:  # the noise with which twenty rounds cost 4 together
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(Repeated(Gaussian(middle), 20), 1e-5) > 4 else (low, middle)
    spent = [0.0, *(epsilon(Repeated(Gaussian(high), n), 1e-5) for n in range(1, 21))]
    first = spent[1]
    height = 20 * first

    def at(n: float, value: float) -> tuple[float, float]:
        return 60 + 18 * n, 262 - 225 * value / height

    out = [
        arrow(60, 262, 450, 262),
        arrow(60, 262, 60, 22),
        text(240, 298, "rounds", "small centre"),
        text(8, 16, "epsilon", "small"),
    ]
    for n in (1, 5, 10, 15, 20):
        out.append(text(at(n, 0)[0], 279, str(n), "small centre"))
    for value in (4, 8, 12):
        x, y = at(0, value)
        out += [text(x - 9, y + 4, str(value), "small"), f'<path d="M{x - 4:g} {y:.1f} h8" class="line"/>']
        out[-2] = out[-2].replace('class="small"', 'class="small" style="text-anchor: end"')
    out += [curve([at(0, 0), at(20, height)], "weak dash"), curve([at(n, v) for n, v in enumerate(spent)], "strong")]
    x, y = at(20, height)
    out += [text(x + 10, y + 4, f"{height:.1f}: the rounds"), text(x + 10, y + 22, "added up")]
    x, y = at(20, spent[20])
    out += [text(x + 10, y, "4: all rounds", "title"), text(x + 10, y + 18, "together", "title")]
    x, y = at(1, first)
    out += [arrow(x + 12, y - 82, x + 1, y - 6), text(x - 6, y - 90, f"one round alone: {first:.2f}", "small")]
    return 306, f"Epsilon over twenty rounds: one alone {first:.2f}, added up {height:.1f}, together 4.", out


DRAWINGS = {draw.__name__: draw for draw in (unit, relation, viewer, channel, total)}


def svg(name: str) -> str:
    """Return a drawing as an SVG file."""
    height, title, parts = DRAWINGS[name]()
    look = f'class="drawing" viewBox="0 0 570 {height}" role="img" aria-label="{title}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {look}>'
    return "\n".join([head, f"<style>\n{style()}</style>", f"<title>{title}</title>", *parts, "</svg>", ""])


def main() -> None:
    """Write all drawings, and the style sheet that they share on the site."""
    FOLDER.mkdir(exist_ok=True)
    SHEET.write_text(sheet())
    for name in DRAWINGS:
        (FOLDER / f"{name}.svg").write_text(svg(name))


if __name__ == "__main__":
    main()
