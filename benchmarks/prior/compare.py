"""Train several priors for a short time each, from the same start, and judge each: which process, which loss?

    python benchmarks/prior/compare.py RECORDS.npz 20 "--process leaves --siblings 0" "--loss alignment" ...

Every quoted argument holds options of train.py; the second argument is the seconds for each. The network is compiled
once for all of them. RECORDS.npz: see judge.py."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from judge import Records, feature_sets, judged
from pictures import PROCESSES, draw
from train import STORED, Encoder, new_encoder, options, ready, train

CHOSEN = (
    "stage 1",
    "stage 2",
    "stage 3",
    "last maps",
    "neck",
    "stages 1 2, coarse 3",
    "stages 1 2, coarse 3 + scattering",
)


def show(encoder: Encoder, records: Records, names: Sequence[str]) -> None:
    """Print a line for each of these feature sets."""
    sets = feature_sets(encoder, records)
    for name in names:
        print(judged(name, sets[name](), records), flush=True)


def main() -> None:
    """Print the speed of every process, and a table for every variant."""
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    begun = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begun:.0f} s] {text}", flush=True)

    records, seconds = Records(Path(sys.argv[1]), device), float(sys.argv[2])
    say("records and their scattering are here")
    for name in PROCESSES if device.type == "cuda" else ():
        for _ in range(2):
            start = time.perf_counter()
            draw([name], 1024, STORED, device).sum().item()
        say(f"{name}: {2048 / (time.perf_counter() - start):.0f} pictures/s")
    encoder = new_encoder(0, device)
    untrained = {name: t.clone() for name, t in encoder.state_dict().items()}
    say("colour scattering, and the untrained network")
    show(encoder, records, ("scattering", *CHOSEN[:-1]))
    forward = None
    for text in sys.argv[3:]:
        how = options(text.split())
        forward = ready(encoder, how) if forward is None else forward
        encoder.load_state_dict(untrained)
        torch.manual_seed(how.seed)
        say(f"compiled; variant {text}")
        print(" ", train(encoder, forward, how, seconds), flush=True)
        show(encoder, records, CHOSEN)
    say("done")


if __name__ == "__main__":
    main()
