"""Write the file of features that the package ships, from a network of train.py: weights, and constants that whiten.

    python benchmarks/prior/ship.py FOLDER src/sordino/features/files/drawn_prior.safetensors

FOLDER holds prior.safetensors. Mean and covariance of the network's maps are taken over drawn pictures, coloured and
grey; nothing here reads a record. Half a minute on two cores."""

import sys
from pathlib import Path

import torch
from pictures import PROCESSES, draw
from safetensors.torch import load_file, save_file
from torch import Tensor
from train import SIDE, STORED

from sordino.features.drawn_prior import ENDS, maps, scaled
from sordino.models.wide_resnet import wide_resnet

PICTURES, SEED = 512, 1  # of every process
RIDGE = 0.1  # of the mean variance, added to every variance


def constants(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean [channels] and whitening matrix [channels, channels] of public rows [n, channels]."""
    covariance = rows.T.cov()
    covariance.diagonal().add_(RIDGE * covariance.diagonal().mean())
    return rows.mean(0).float(), torch.linalg.inv(torch.linalg.cholesky(covariance)).float().contiguous()


def main() -> None:
    """Write the file."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    weights = load_file(Path(sys.argv[1]) / "prior.safetensors")
    held = {k: v for k, v in weights.items() if k.startswith("backbone.") and int(k.split(".")[1]) <= ENDS[-1]}
    backbone = wide_resnet((3, SIDE, SIDE), 1)[: ENDS[-1] + 1]
    backbone.load_state_dict({k.removeprefix("backbone."): v.float() for k, v in held.items()})
    torch.manual_seed(SEED)
    edge = (STORED - SIDE) // 2
    drawn = torch.cat([draw([name], PICTURES, STORED, torch.device("cpu"))[:, 0] for name in PROCESSES])
    drawn = drawn[:, :, edge:-edge, edge:-edge]
    grey = drawn.float().mean(1, keepdim=True).round().to(torch.uint8)
    for kind, pictures in (("colour", drawn), ("grey", grey)):
        with torch.no_grad():
            every = [maps(backbone, scaled(chunk)) for chunk in pictures.split(200)]
        for i, parts in enumerate(zip(*every, strict=True)):
            rows = torch.cat(parts).flatten(2).mT.reshape(-1, parts[0].shape[1]).double()
            held[f"{kind}.{i}.mean"], held[f"{kind}.{i}.whiten"] = constants(rows)
    out = Path(sys.argv[2])
    save_file(held, out, {"made_by": "benchmarks/prior/train.py, then ship.py", "pictures": str(len(drawn))})
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
