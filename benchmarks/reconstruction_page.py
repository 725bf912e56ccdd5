"""docs/results/reconstruction.md and its grids, from results.json and pictures.npz of benchmarks/reconstruction.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sordino.report.picture_grid import GridRow, picture_grid

Row = dict[str, Any]
# Feng et al., Table 6: MSE, PSNR, SSIM; Table 7: MSE, MAE
TABLE6 = {
    ("none", "-"): (1.7104, 9.79, 0.0751),
    ("DP-SGD", "2"): (2.2646, 8.51, 0.0195), ("DP-SGD", "8"): (2.1463, 8.78, 0.0519),
    ("UDP-FL, Laplace", "2"): (2.2686, 8.63, 0.0573), ("UDP-FL, Laplace", "8"): (2.1290, 8.95, 0.0746),
    ("UDP-FL, staircase", "2"): (2.3399, 8.37, 0.0096), ("UDP-FL, staircase", "8"): (2.1832, 8.73, 0.0225),
}  # fmt: skip
TABLE7 = {
    ("DP-SGD", "2"): (2.40, 1.26), ("DP-SGD", "8"): (2.25, 1.20),
    ("UDP-FL, Laplace", "2"): (2.42, 1.27), ("UDP-FL, Laplace", "8"): (2.28, 1.21),
    ("UDP-FL, staircase", "2"): (2.44, 1.28), ("UDP-FL, staircase", "8"): (2.30, 1.22),
}  # fmt: skip
ORDER = ("none", "none, ResNet-18", "DP-SGD", "UDP-FL, Laplace, as printed", "UDP-FL, Laplace, sound",
         "UDP-FL, staircase, as printed", "UDP-FL, staircase, sound")  # fmt: skip
SETS = {"cifar10": ("CIFAR-10", ("ship", "car")), "digits": ("FEMNIST digits", ("6", "5"))}


def page(out: Path, results: Path) -> None:
    """Write the page and its pictures."""
    rows = {row["name"]: row for row in json.loads((out / "results.json").read_text())}
    folder = results / "reconstruction"
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(out / "pictures.npz") as file:
        shown = {name: file[name].astype(np.float32) / 255 for name in file.files}
    lines = ["# Reconstruction attacks", "", *verdict(rows), "", *table6(rows), "", *table7(rows), "", *fig4(rows)]
    lines += ["", *readings()]
    (results / "reconstruction.md").write_text("\n".join(lines).rstrip() + "\n")
    grids(rows, shown, folder)
    print(results / "reconstruction.md")


def printed(method: str) -> str:
    return method.replace(", as printed", "").replace(", sound", "")


def pick(rows: dict[str, Row], table: str, tail: str = "") -> list[tuple[str, str, Row]]:
    """Method, epsilon and row of a table, in the page's order."""
    found = []
    for name, row in rows.items():
        parts = name.split("/")
        if parts[0] == table and (not tail or parts[3] == tail):
            found.append((parts[1], parts[2], row))
    return sorted(found, key=lambda f: (ORDER.index(f[0]), f[1]))


def value(rows: dict[str, Row], name: str, key: str, digits: int = 2) -> str:
    return f"{rows[name][key]:.{digits}f}" if name in rows else "not measured"


def verdict(rows: dict[str, Row]) -> list[str]:
    """The findings, with the numbers in them."""
    sound = [row["ssim"] for method, _, row in pick(rows, "table6", "1") if method == "DP-SGD" or "sound" in method]
    loud = [row["ssim"] for method, _, row in pick(rows, "table6", "1") if "printed" in method]
    single = rows.get("table6/none/-/1", {"records": 0, "identified": 0.0})
    reference = rows.get("table6/none/-/1", {}).get("mean picture", {})
    text = [
        "Without noise, from the first update of a client with one CIFAR-10 picture, the server that inverts gradients "
        f"reaches a mean SSIM of {value(rows, 'table6/none/-/1', 'ssim')} (paper: 0.08) and finds the right one among "
        f"{900 + single['records']} pictures in {100 * single['identified']:.0f} % of cases; from the mean gradient of "
        f"about 100 pictures it reaches {value(rows, 'table6/none/-/100', 'ssim')}."
    ]
    if sound:
        text.append(
            f"With noise that is accounted for at epsilon 2 or 8 the SSIM is at most {max(sound):.2f}, where a picture "
            f"that is the mean of all has {reference.get('ssim', float('nan')):.2f}."
        )
    if loud:
        text.append(f"As printed, UDP-FL's noise leaves an SSIM of up to {max(loud):.2f} for a single picture.")
    text.append(
        "In the paper's unit, the standardised input of the model, the mean picture has an MSE of about 1.0; every "
        "MSE in Tables 6 and 7 of Feng et al., without privacy too, is above 1.7. By these tables the attacks did "
        "not work in any of their settings, so the differences between mechanisms say nothing about protection."
    )
    for name, (title, _) in SETS.items():
        plain, blank = (rows.get(f"fig4/{name}/{m}/-") for m in ("FedAvg", "no training"))
        if plain and blank:
            others = [r["judged"] for n, r in rows.items() if n.startswith(f"fig4/{name}/") and n.endswith("sound/8")]
            text.append(
                f"On {title}, {100 * plain['judged']:.0f} % of the pictures that a curious client's ACGAN makes of the "
                f"private classes from FedAvg's models are recognised as such by a second classifier; with a "
                f"model that nobody trained it is {100 * blank['judged']:.0f} %"
                + (f", with sound methods at epsilon 8 at most {100 * max(others):.0f} %." if others else ".")
            )
    return [" ".join(text)]


def table6(rows: dict[str, Row]) -> list[str]:
    """Table 6 of Feng et al."""
    out = ["## Table 6 of Feng et al. (003): inverting gradients on CIFAR-10", "",
           "    python benchmarks/reconstruction.py table6", "",
           "MSE in units of the model's input; PSNR in dB and SSIM of pixels in [0, 1]; identified: the nearest of "
           "some 900 pictures is the true one. The last column is the MSE of the mean picture.", "",
           "| | epsilon | pictures | MSE, paper | MSE | PSNR, paper | PSNR | SSIM, paper | SSIM | identified | mean "
           "picture |",
           "|" + " --- |" * 11]  # fmt: skip
    for tail in ("1", "100"):
        for method, epsilon, row in pick(rows, "table6", tail):
            said = TABLE6.get((printed(method), epsilon)) if "sound" not in method else None
            theirs = [f"{v:g}" for v in said] if said else [""] * 3
            out.append(
                f"| {method} | {epsilon} | {'1' if tail == '1' else 'about 100'} | {theirs[0]} | {row['mse']:.3f} | "
                f"{theirs[1]} | {row['psnr']:.2f} | {theirs[2]} | {row['ssim']:.3f} | {100 * row['identified']:.0f} % "
                f"| {row['mean picture']['mse']:.2f} |"
            )
    return [*out, "", "![Pictures and their reconstructions](reconstruction/table6.png)"]


def table7(rows: dict[str, Row]) -> list[str]:
    """Table 7 of Feng et al."""
    out = ["## Table 7 of Feng et al. (003): model inversion on CIFAR-10", "",
           "    python benchmarks/reconstruction.py table7", "",
           "Errors between the reconstruction of a class and 50 training pictures of that class, in units of the "
           "model's input. The last column is the MSE of the mean of other pictures of the class, made without any "
           "model.", "",
           "| | epsilon | MSE, paper | MSE | MAE, paper | MAE | SSIM | accuracy of the model | class mean |",
           "|" + " --- |" * 9]  # fmt: skip
    for method, epsilon, row in pick(rows, "table7"):
        said = TABLE7.get((printed(method), epsilon)) if "sound" not in method else None
        theirs = [f"{v:g}" for v in said] if said else [""] * 2
        out.append(
            f"| {method} | {epsilon} | {theirs[0]} | {row['mse']:.3f} | {theirs[1]} | {row['mae']:.3f} | "
            f"{row['ssim']:.3f} | {100 * row['accuracy']:.1f} % | {row['mean picture']['mse']:.2f} |"
        )
    return [*out, "", "![Classes as the models see them](reconstruction/table7.png)"]


def fig4(rows: dict[str, Row]) -> list[str]:
    """Fig. 4 of Li et al."""
    out = ["## Fig. 4 of Li et al. (004): ACGAN of an honest-but-curious client", "",
           "    python benchmarks/reconstruction.py fig4", "",
           "The paper shows pictures and no numbers. Recognised: share of 32 generated pictures of the private classes "
           "that a classifier trained on all records assigns to the right class (guessing: 10 %). MSE, PSNR and SSIM "
           "are to the nearest private training picture; they do not measure success: an all-black "
           "picture is near every digit. The classifier has the architecture of the attacked model, so it may "
           "also recognise features that a person would not.", "",
           "| data | method | epsilon | recognised | MSE | PSNR | SSIM | accuracy of the model |",
           "|" + " --- |" * 8]  # fmt: skip
    for name, row in rows.items():
        if name.startswith("fig4/"):
            _, dataset, method, epsilon = name.split("/")
            out.append(
                f"| {SETS[dataset][0]} | {method} | {epsilon} | {100 * row['judged']:.0f} % | {row['mse']:.3f} | "
                f"{row['psnr']:.2f} | {row['ssim']:.3f} | {100 * row['accuracy']:.1f} % |"
            )
    for dataset, (title, _) in SETS.items():
        out += ["", f"![{title}](reconstruction/fig4-{dataset}.png)"]
    return out


def readings() -> list[str]:
    return [
        "## What we read differently",
        "",
        "- *Table 6.* The paper does not say which network, which round or how many steps. Ours is a small CNN "
        "(106,538 parameters) at its random start, where gradients tell most. "
        "Single pictures: two victims, one seed. The noise is that of the first of 300 "
        "steps, of which epsilon covers all: 10 clients, records drawn at rate 0.05 for batches of one, as in Section "
        "5.2, and 1/9 for batches of about 100, delta 1e-5, clip 0.01. Clients take plain SGD steps, as the attack "
        "needs; the paper trains with Adam. The attacker is told the number of pictures and reads the labels itself. "
        "Batches are compared with the originals in the order that fits best.",
        "- PSNR: the paper's 9.79 dB at an MSE of 1.7104 means a range of 4.0, that of standardised CIFAR-10 inputs; "
        "hence the unit of MSE.",
        "- *Table 7.* The paper cites Fredrikson et al. (2015) and describes a reconstruction model that is trained on "
        "similar data with the predictions as feedback. Ours is Fredrikson's attack: descent from the mean of 1,000 "
        "other pictures to what the model is most confident of. Neither sees single records of a class of thousands; "
        "the class mean in the last column is as near to a training picture as one can get without seeing it.",
        "- UDP-FL *as printed* takes every coordinate as a query of its own; its epsilon is a claim (003.md). "
        "The *sound* rows have that epsilon accounted.",
        "- *Fig. 4.* 100 clients of 100 pictures (44 digits) in place of all of CIFAR-10, 150 rounds in place of 400, "
        "a small CNN in place of ResNet-18, and digits in place of FEMNIST's letters. Private are ship and car, 6 and "
        "5. The paper's epsilon is 0.2 a round as printed; our sound rows have 8 in total. The paper does not describe "
        "its ACGAN: here the class head is the broadcast model, and the real pictures are those of the ten curious "
        "clients, none of them private. Time-varying DP is `geodp`, Sensitive DP is `adaptive-noise`.",
    ]


def grids(rows: dict[str, Row], shown: dict[str, Any], folder: Path) -> None:
    """Draw the pictures of all three."""
    for table, kind in (("table6", "1"), ("table7", "")):
        cells = [(m, e, row) for m, e, row in pick(rows, table, kind) if "ResNet" not in m]
        lines = [
            GridRow(f"{m}, epsilon {e}" if e != "-" else m, shown[f"{row['name']}|made"],
                    **({} if table == "table7" else each(shown, row["name"])))
            for m, e, row in cells
        ]  # fmt: skip
        if lines:
            labels = ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
            first = "a training picture" if table == "table7" else "original"
            originals = shown[f"{cells[0][2]['name']}|true"]
            picture_grid(folder / f"{table}.png", originals, lines, labels if table == "table7" else (), first)
    for dataset, (_, labels) in SETS.items():
        names = [n for n in rows if n.startswith(f"fig4/{dataset}/")]
        lines = [
            GridRow(n.split("/")[2] + ("" if n.endswith("-") else f", epsilon {n.split('/')[3]}"),
                    shown[f"{n}|made"], **each(shown, n))
            for n in names
        ]  # fmt: skip
        if lines:
            words = [label for label in labels for _ in range(4)]
            originals = shown[f"{names[0]}|true"]
            picture_grid(folder / f"fig4-{dataset}.png", originals, lines, words, "private pictures")


def each(shown: dict[str, Any], name: str) -> dict[str, list[float]]:
    """PSNR and SSIM of every shown picture."""
    import torch

    from sordino.red_team import picture_metrics as metrics

    made, true = (torch.from_numpy(shown[f"{name}|{key}"]) for key in ("made", "true"))
    return {"psnr": metrics.psnr(made, true).tolist(), "ssim": metrics.ssim(made, true).tolist()}
