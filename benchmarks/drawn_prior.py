"""A linear model on features that drawn pictures have taught: CIFAR-10 and others, behind a secure sum or not.

    python benchmarks/drawn_prior.py choose              # settings by simulation, judged on 5,000 training records
    python benchmarks/drawn_prior.py confirm [1 8]       # real runs with defaults, test set, 3 seeds, by epsilon
    python benchmarks/drawn_prior.py confirm --channel direct    # the same against a curious server
    python benchmarks/drawn_prior.py confirm --dataset fashion-mnist --kind silhouettes+drawn-prior --rounds 150
    python benchmarks/drawn_prior.py elsewhere           # beside formulas, on grey pictures of four kinds, 3 seeds

`choose` never reads a test record: it trains many settings at once on the other training records with noise of torch's
generator, and releases nothing. The defaults of the drawn prior follow from it (runs/defaults.py). `confirm` makes
the runs that `sordino run` would make, and so does `elsewhere`. The features of 60,000 pictures take seven minutes on
two cores; --features FOLDER keeps them there for the next call.
"""

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.core.rng import Stream
from sordino.data.load import load
from sordino.features.catalogue import FEATURES
from sordino.features.drawn_prior import CHUNK
from sordino.measures.row_moments import MEAN, NEAR
from sordino.report.summary import Spread
from sordino.runs import build, prepare, run
from sordino.spec import spec

CLIENTS, HELD_OUT, ROUNDS, DELTA, SEEDS = 10, 5_000, 200, 1e-5, (0, 1, 2)
ONCE = {
    1.0: 3.73064,
    2.0: 1.9938,
    8.0: 0.600231,
}  # sordino calibrate --epsilon E --delta 1e-5 --mechanism gaussian --steps 1
CLIPS, FACTORS = (0.1, 0.3), (0.5, 1.0, 2.0)
Kept = dict[tuple[object, ...], list[Tensor]]  # features of training and test records, by prepare.key_of_features

# docs/results/utility.md: chosen on training records of Fashion-MNIST, for 50 clients and epsilon = 1
GARMENTS = {"rounds": 100, "learning_rate": 4.0, "averaging": "tail:0.25", "algorithm": "fedavgm",
            "server_momentum": 0.9}  # fmt: skip
RULE = {"normalise": "centred"}  # the clip, the rate and the averaging follow (docs/defaults.md)
SETTINGS: list[tuple[str, str, dict[str, Any]]] = [  # features, words, keys
    ("scattering", "default", {}),
    ("scattering", "by the rule", RULE),
    ("silhouettes", "by the rule", RULE),
    ("silhouettes", "of utility.md", GARMENTS),
    ("drawn-prior", "default", {}),
]
# femnist-digits has 12 clients of its own; the 128 of omniglot, each with noise for a million weights, take too long
ELSEWHERE: dict[str, dict[str, Any]] = {
    "fashion-mnist": {}, "medical-mnist": {}, "femnist-digits": {}, "omniglot": {"partition": "iid"},
}  # fmt: skip


def features(folder: Path | None, name: str, x: Tensor, kind: str = "drawn-prior") -> Tensor:
    """Return the features of pictures, from the folder if they are there."""
    if "+" in kind:
        parts = [features(folder, name, x, part) for part in kind.split("+")]
        return torch.cat(parts, 1) / len(parts) ** 0.5
    kept = None if folder is None else folder / f"{kind}-{name}.npy"
    if kept is not None and kept.exists():
        return torch.from_numpy(np.load(kept))
    begun, rows = time.monotonic(), []
    for i in range(0, len(x), 10 * CHUNK):
        rows.append(FEATURES[kind](x[i : i + 10 * CHUNK]))
        print(f"{name}: {min(i + 10 * CHUNK, len(x))} pictures, {time.monotonic() - begun:.0f} s", end="\r", flush=True)
    print()
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(kept, torch.cat(rows).numpy())
    return torch.cat(rows)


def choose(x: Tensor, y: Tensor) -> None:
    """Print the accuracy of all settings on held-out training records."""
    order = torch.from_numpy(Stream.research(99).permutation(len(y)))
    x, y = F.normalize(x[order]), y[order].long()
    test, truth, x, y = x[:HELD_OUT], y[:HELD_OUT], x[HELD_OUT:], y[HELD_OUT:]
    generator = torch.Generator().manual_seed(0)
    print("| epsilon | clip | rate / that of the rule | schedule | averaging | accuracy % |\n" + "| --- " * 6 + "|")
    for epsilon, once in ONCE.items():
        share = min(MEAN, once / len(x) * math.sqrt(x.shape[1] + 1) / NEAR)
        noise = torch.randn(x.shape[1], generator=generator) * once / share / len(x)
        rows, held = (_centred(part, x.mean(0) + noise) for part in (x, test))
        z = once * math.sqrt(ROUNDS / (1 - share**2))
        for text, guess in _trained(rows, y, held, z, generator):
            right = float((guess == truth).double().mean()) * 100
            print(f"| {epsilon:g} | {text} | {right:.2f} |", flush=True)


def _centred(x: Tensor, mean: Tensor) -> Tensor:
    return F.normalize(torch.cat([x - mean, torch.full((len(x), 1), 0.1)], 1))


def _trained(x: Tensor, y: Tensor, held: Tensor, z: float, generator: torch.Generator) -> list[tuple[str, Tensor]]:
    """Train all settings at once and return what each says of the held-out records."""
    settings = [(c, f, s) for c in CLIPS for f in FACTORS for s in ("constant", "cosine")]
    many, classes, n = len(settings), int(y.max()) + 1, len(x)
    clip = torch.tensor([c for c, _, _ in settings])[:, None]
    cosine = torch.tensor([s == "cosine" for _, _, s in settings])[:, None]
    rule = 2 / math.sqrt(2 * math.log(classes)) / (math.sqrt(ROUNDS) * z * clip / n)
    rate = torch.tensor([f for _, f, _ in settings])[:, None] * rule
    target = F.one_hot(y, classes).float()[:, None]
    weight = torch.zeros(x.shape[1], many, classes)
    ema, tail = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(ROUNDS):
        total = z * clip * torch.randn(weight.shape, generator=generator)
        for part, truth in zip(x.split(5000), target.split(5000), strict=True):
            slope = (part @ weight.flatten(1)).view(-1, many, classes).softmax(2) - truth
            slope *= (clip / slope.norm(dim=2, keepdim=True)).clamp_max(1)
            total += (part.T @ slope.flatten(1)).view_as(weight)
        falling = torch.tensor(0.5 + 0.5 * math.cos(math.pi * step / ROUNDS))
        weight -= rate * torch.where(cosine, falling, torch.ones(())) * total / n
        ema.lerp_(weight, max(0.03, 1 / (step + 1)))
        if step >= 3 * ROUNDS // 4:
            tail += weight
    out = []
    for name, model in (("ema:0.97", ema), ("tail:0.25", tail)):
        guesses = (held @ model.flatten(1)).view(-1, many, classes).argmax(2)
        out += [(f"{c:g} | {f:g} | {s} | {name}", guesses[:, i]) for i, (c, f, s) in enumerate(settings)]
    return out


def accuracy(keys: dict[str, Any], kept: Kept) -> float:
    """Return the accuracy of one real run on the test set, in %."""
    with tempfile.TemporaryDirectory() as out:
        usual = {"model": "linear", "method": "dp-sgd", "clients": CLIENTS, "delta": DELTA, "evaluate_every": 10**6,
                 "checkpoint_seconds": 1e9, "out": out}  # fmt: skip
        job = build.from_spec(spec.from_dict(usual | keys), kept)
        return 100 * (run.execute(job, own_model=False).accuracy or 0.0)


def confirm(epsilons: list[float], shared: dict[str, Any], kept: Kept) -> None:
    """Print the accuracy of real runs on the test set."""
    print("| epsilon | mean accuracy % | seeds 0 / 1 / 2 | seconds a run |\n| --- | --- | --- | --- |", flush=True)
    for epsilon in epsilons:
        begun = time.monotonic()
        found = [accuracy(shared | {"epsilon": epsilon, "seed": seed}, kept) for seed in SEEDS]
        shown, seconds = " / ".join(f"{a:.2f}" for a in found), (time.monotonic() - begun) / len(SEEDS)
        print(f"| {epsilon:g} | {statistics.mean(found):.2f} | {shown} | {seconds:.0f} |", flush=True)


def elsewhere(epsilons: list[float], folder: Path | None) -> None:
    """Print the accuracy of real runs on other datasets' test sets, beside features by formula, in 50 rounds."""
    columns = [*(f"epsilon {e:g}" for e in epsilons), "without privacy"]
    print(f"| data | features | setting | {' | '.join(columns)} |\n|" + " --- |" * (3 + len(columns)), flush=True)
    for dataset, own in ELSEWHERE.items():
        data, made = load(dataset), dict[str, list[Tensor]]()
        parts = (("train", data.x_train), ("test", data.x_test))
        for kind, words, setting in SETTINGS:
            if setting is GARMENTS and dataset != "fashion-mnist":
                continue
            if kind not in made:
                made = {kind: [features(folder, f"{dataset}-{name}", x, kind) for name, x in parts]}
            shared = {"dataset": dataset, "features": kind} | own | setting
            # normalise decides how the cache names features, and these three kinds are flat rows either way
            kept = {
                prepare.key_of_features(spec.from_dict(shared | {"normalise": n})): made[kind] for n in ("none", "rows")
            }
            cells = []
            runs: list[dict[str, Any]] = [{"epsilon": e, "channel": "secure-sum"} for e in epsilons]
            for keys in [*runs, {"method": "none"}]:
                seeds = SEEDS if "epsilon" in keys else SEEDS[:1]
                found = Spread.of(accuracy(shared | keys | {"seed": seed}, kept) for seed in seeds)
                cells.append(f"{found.mean:.2f}" + (f" ± {found.deviation:.2f}" if found.n > 1 else ""))
            print(f"| {dataset} | `{kind}` | {words} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "confirm", "elsewhere"))
    parser.add_argument("epsilon", nargs="*", type=float, help="of the real runs; all if left out")
    parser.add_argument("--features", type=Path, help="a folder that keeps the features")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--kind", default="drawn-prior", help="the features, or several joined by +")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the real runs")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="of the real runs")
    parser.add_argument("--channel", choices=("secure-sum", "direct"), default="secure-sum", help="of the real runs")
    how = parser.parse_args()
    if how.what == "elsewhere":
        elsewhere(how.epsilon or [1.0, 8.0], how.features)
        return
    data, start = load(how.dataset), "" if how.dataset == "cifar10" else f"{how.dataset}-"
    x = features(how.features, f"{start}train", data.x_train, how.kind)
    if how.what == "choose":
        choose(x, data.y_train)
        return
    both = [x, features(how.features, f"{start}test", data.x_test, how.kind)]
    shared = {"dataset": how.dataset, "features": how.kind}
    usual = spec.from_dict(shared | {"normalise": "centred"})
    shared |= {"channel": how.channel, "rounds": how.rounds, "clients": how.clients}
    confirm(how.epsilon or [1.0, 8.0], shared, {prepare.key_of_features(usual): both})


if __name__ == "__main__":
    main()
