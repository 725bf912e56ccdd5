"""Judge a prior on training records of CIFAR-10: ridge regression, and a simulated private linear probe.

    python benchmarks/prior/judge.py RECORDS.npz                       # colour scattering and an untrained network
    python benchmarks/prior/judge.py RECORDS.npz --prior FOLDER        # a network from train.py
    python benchmarks/prior/judge.py RECORDS.npz --prior FOLDER --sets "scattering; stages 1 2, coarse 3 + scattering" \
        --rates 16,32,64 --no-ridge                                    # some of it, as on a processor

RECORDS.npz holds x [n, 32, 32, 3] uint8 and y [n], TRAINING records only: the last fifth judges what the others fit.

The probe is logistic regression with full batches, as in benchmarks/cifar_goal.py: records of norm 10, gradients
clipped to 1, Gaussian noise, a cosine schedule and an average of the models. Before that it releases the mean of the
records' features with little noise (on the same budget), subtracts it and sets the norms again: drawn pictures do not
have the mean of photographs, and what all records share would slow the probe down. The noise is that of 45,000
records: the sum over the records at hand is scaled up to that number before noise is added. It is a simulation by
torch's generator, to compare features; nothing is released. Rates are chosen on the records that judge, which flatters
all features alike. "Stages" are the three widths of the network.

The covariance that whitens the features is that of pictures drawn by random processes, never that of records."""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from pictures import PROCESSES, draw
from safetensors.torch import load_file
from torch import Tensor
from train import SIDE, STORED, Encoder, new_encoder, scaled

from sordino.features.colour_scattering import colour_scattering

STEPS, NORM, POPULATION = 200, 10.0, 45_000
MEAN_NOISE = 20.0  # noise multiplier of the mean, released once; part of the total
ONCE = {1: 3.73064, 8: 0.600231}  # sordino calibrate --epsilon E --delta 1e-5 --mechanism gaussian --steps 1
RATES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3)  # shares of the Gram matrix's trace


class Records:
    """Training records of CIFAR-10, those that fit first."""

    def __init__(self, path: Path, device: torch.device) -> None:
        with np.load(path) as file:
            x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"].astype(np.int64))
        self.x, self.y = x.permute(0, 3, 1, 2).contiguous().to(device), y.to(device)
        self.fit = len(x) * 4 // 5
        self.scattering = [colour_scattering(chunk).flatten(1) / NORM for chunk in self.x.split(2000)]
        self.scattering = torch.cat(self.scattering)


def maps(encoder: Encoder, pictures: Tensor) -> list[Tensor]:
    """Return the maps of the three stages and those of the backbone's end, averaged on a grid of 4 x 4."""
    device, parts = pictures.device, []
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for chunk in pictures.split(1000):
            x = scaled(chunk)
            parts.append([F.adaptive_avg_pool2d(m.float(), 4) for m in (*encoder.stages(x), encoder.maps(x))])
    return [torch.cat(stage) for stage in zip(*parts, strict=True)]


def whitened(x: Tensor, public: Tensor, share: float = 0.1) -> Tensor:
    """Return channels decorrelated under public features: x and public are [n, channels, ...]."""
    rows = public.flatten(2).mT.reshape(-1, public.shape[1]).double()
    covariance = rows.T.cov()
    covariance.diagonal().add_(share * covariance.diagonal().mean())
    inverse = torch.linalg.inv(torch.linalg.cholesky(covariance)).float()
    centred = x.flatten(2) - rows.mean(0).float()[:, None]
    return torch.einsum("ij,njp->nip", inverse, centred).reshape(x.shape)


def feature_sets(encoder: Encoder, records: Records) -> dict[str, Callable[[], Tensor]]:
    """Return, by name, functions that join the features of all records, every row with norm 1."""
    device = records.x.device
    torch.manual_seed(1)
    drawn = torch.cat([draw([name], 512 if device.type == "cuda" else 128, STORED, device)[:, 0] for name in PROCESSES])
    edge = (STORED - SIDE) // 2
    public, own = maps(encoder, drawn[:, :, edge:-edge, edge:-edge]), maps(encoder, records.x)
    with torch.no_grad():
        neck, public_neck = (encoder.neck(m[3].flatten(1))[:, :, None] for m in (own, public))
    grid = own[2].shape
    first, second, third, last = (F.normalize(whitened(o, p).flatten(1)) for o, p in zip(own, public, strict=True))
    del own
    sets: dict[str, Callable[[], Tensor]] = {
        "scattering": lambda: records.scattering,
        "stage 1": lambda: first,
        "stage 2": lambda: second,
        "stage 3": lambda: third,
        "last maps": lambda: last,
        "last maps, averages": lambda: last.view(grid).mean((2, 3)),
        "neck": lambda: whitened(neck, public_neck).flatten(1),
        "stages 1 2 3": lambda: torch.cat([first, second, third], 1),
        "stages 1 2, coarse 3": lambda: torch.cat(
            [first, second, F.normalize(F.avg_pool2d(third.view(grid), 2).flatten(1))], 1
        ),
    }
    for name in ("stages 1 2 3", "stages 1 2, coarse 3"):
        sets[f"{name} + scattering"] = partial(_beside, sets[name], records)
    return sets


def _beside(made: Callable[[], Tensor], records: Records) -> Tensor:
    return torch.cat([F.normalize(made()), records.scattering], 1)


def ridge(x: Tensor, y: Tensor, test: Tensor, truth: Tensor) -> float:
    """Return the best accuracy of ridge regression on one-hot labels, in per cent."""
    mean, target = x.mean(0), F.one_hot(y, 10).double() - 0.1
    x, test = (x - mean).double(), (test - mean).double()
    small = x.shape[1] < len(x)
    gram, right = (x.T @ x, x.T @ target) if small else (x @ x.T, target)
    best = 0.0
    for weight in RIDGES:
        damped = gram.clone()
        damped.diagonal().add_(weight * gram.trace())
        solved = torch.cholesky_solve(right, torch.linalg.cholesky(damped))
        answer = test @ (solved if small else x.T @ solved)
        best = max(best, float((answer.argmax(1) == truth).double().mean()) * 100)
    return best


def private(
    x: Tensor, y: Tensor, test: Tensor, truth: Tensor, rates: Sequence[float] = RATES
) -> dict[int, tuple[float, float]]:
    """Return the best accuracy of a simulated private probe in per cent and its rate, for every epsilon."""
    device = x.device
    generator = torch.Generator(device).manual_seed(0)
    mean = x.mean(0) + torch.randn(x.shape[1], generator=generator, device=device) * (MEAN_NOISE / POPULATION)
    x, test = F.normalize(x - mean), F.normalize(test - mean)
    every = [(STEPS / (once**-2 - MEAN_NOISE**-2)) ** 0.5 for once in ONCE.values()]  # Gaussian noise adds by squares
    settings = [(noise, rate) for noise in every for rate in rates]
    noise, rate = (torch.tensor(t, device=device)[:, None] for t in zip(*settings, strict=True))
    runs = len(settings)
    target = F.one_hot(y, 10).float()[:, None]
    weight = torch.zeros(x.shape[1], runs, 10, device=device)
    average = torch.zeros_like(weight)
    for step in range(STEPS):
        slope = (NORM * x @ weight.flatten(1)).view(-1, runs, 10).softmax(2) - target
        slope = slope / (NORM * slope.norm(dim=2, keepdim=True)).clamp_min(1)
        total = (NORM * x.T @ slope.flatten(1)).view_as(weight) * (POPULATION / len(x))
        total += noise * torch.randn(weight.shape, generator=generator, device=device)
        weight -= rate * (0.5 + 0.5 * np.cos(np.pi * step / STEPS)) * total / POPULATION
        average.lerp_(weight, max(0.03, 1 / (step + 1)))
    right = ((test @ average.flatten(1)).view(-1, runs, 10).argmax(2) == truth[:, None]).float().mean(0) * 100
    table = right.view(len(ONCE), len(rates)).max(1)
    return {e: (float(table.values[i]), rates[int(table.indices[i])]) for i, e in enumerate(ONCE)}


def judged(name: str, x: Tensor, records: Records, rates: Sequence[float] = RATES, ridges: bool = True) -> str:
    """Return a line on one feature set: dimension, ridge with 8,000 and with all records, private at both epsilons."""
    x, y, fit = F.normalize(x), records.y, records.fit
    parts = [f"  {name:33} {x.shape[1]:6}"]
    for k in (min(8000, fit), fit) if ridges else ():
        parts.append(f"ridge {k} {ridge(x[:k], y[:k], x[fit:], y[fit:]):5.1f}")
    for e, (accuracy, rate) in private(x[:fit], y[:fit], x[fit:], y[fit:], rates).items():
        parts.append(f"eps {e} {accuracy:5.1f} (rate {rate:g})")
    return "  ".join(parts)


def main() -> None:
    """Print the table of one prior, or of an untrained network and colour scattering."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--prior", type=Path)
    parser.add_argument("--sets", help="names of feature sets, separated by semicolons; all if left out")
    parser.add_argument("--rates", default=",".join(f"{r:g}" for r in RATES), help="learning rates of the probe")
    parser.add_argument("--ridge", action=argparse.BooleanOptionalAction, default=True)
    how = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    start = time.perf_counter()
    records = Records(how.records, device)
    encoder = new_encoder(0, device)
    if how.prior:
        encoder.load_state_dict(load_file(how.prior / "prior.safetensors"))
    sets = feature_sets(encoder, records)
    print(f"{time.perf_counter() - start:.1f} s until all features were there", flush=True)
    for name in [text.strip() for text in how.sets.split(";")] if how.sets else sets:
        print(judged(name, sets[name](), records, tuple(map(float, how.rates.split(","))), how.ridge), flush=True)
    print(f"{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
