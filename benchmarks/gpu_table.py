"""The table of docs/speed.md for one GPU: rounds of a thousand clients, and clipped steps of ResNet-18.

    python benchmarks/gpu_table.py              # about two minutes; half of it is the compiler's
    python benchmarks/gpu_table.py --quick      # without what is compiled

Each line is a command of its own (`rounds.py`, `w3_clipped_gradients.py`), run on a GPU that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
W1 = "rounds.py --workload W1 --method dp-sgd --device cuda --clients 1000 --clients-per-round 1000 --seconds 8"
W2 = "rounds.py --workload W2 --method dp-fedavg --device cuda --clients 10000 --clients-per-round 1000 --seconds 8"
RESNET = "w3_clipped_gradients.py --device cuda --models resnet18gn --rounds 20 --no-memory --batch"
ROWS = {
    "W1 round, 1000 clients, a seed (Philox)": W1 + " --beside none",
    "W1 round, 1000 clients, secure mode (ChaCha20, exact noise)": W1 + " --secure",
    "W2 round, 1000 of 10,000 clients, a seed": W2 + " --beside none",
    "W2 round, 1000 of 10,000 clients, secure mode": W2 + " --secure",
    "ResNet-18-GN, 256 records, float32": f"{RESNET} 256",
    "ResNet-18-GN, 1024 records, float32": f"{RESNET} 1024",
    "ResNet-18-GN, 256 records, bfloat16": f"{RESNET} 256 --precision bfloat16",
    "ResNet-18-GN, 1024 records, bfloat16": f"{RESNET} 1024 --precision bfloat16",
}
COMPILED = {
    "W1 round, 1000 clients, `compile = true`": W1.replace("--seconds 8", "--seconds 12 --warmup 6") + " --compile",
}


def numbers(found: dict[str, object]) -> tuple[float, float | None]:
    """Records a second, and those of the same work without privacy if it took turns."""
    if "ours" in found:
        return tuple(float(found[k]["samples_per_s"]) for k in ("ours", "plain"))  # type: ignore[index, return-value]
    beside = found.get("beside")
    return float(found["records_per_s"]), float(beside["records_per_s"]) if beside else None  # type: ignore[arg-type, index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without what is compiled, which takes a minute")
    rows = ROWS if parser.parse_args().quick else ROWS | COMPILED
    print("| what | records/s | without privacy | ratio |\n| --- | ---: | ---: | ---: |")
    for name, command in rows.items():
        ended = subprocess.run(
            [sys.executable, *command.split()], cwd=HERE, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            print(f"| {name} | failed: {ended.stderr.strip().splitlines()[-1][:200]} | | |", flush=True)
            continue
        ours, plain = numbers(json.loads(ended.stdout.splitlines()[-1]))
        rest = "| |" if plain is None else f"{plain:,.0f} | {ours / plain:.2f} |"
        print(f"| {name} | {ours:,.0f} | {rest}", flush=True)


if __name__ == "__main__":
    main()
