"""What per-sample clipping costs: clipped sums against a plain forward and backward, time and peak memory.

    python benchmarks/w3_clipped_gradients.py                      # three models, one client, shared weights
    python benchmarks/w3_clipped_gradients.py --models cnn --check  # and compare with one sample at a time
    python benchmarks/w3_clipped_gradients.py --workload w1         # 10 clients with weights of their own
    python benchmarks/w3_clipped_gradients.py --workload w2         # 100 clients, no clipping
    python benchmarks/w3_clipped_gradients.py --device cuda --workload w1 --clients 1000 --even
    python benchmarks/w3_clipped_gradients.py --device cuda --models resnet18gn --batch 1024 --precision bfloat16

Plain and ours alternate in one process and the ratio is of the medians; memory is measured in a process of its
own for each. Random data: speed does not depend on it. One JSON line a model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.federations.heap import keep_freed_memory
from sordino.gradients import CohortGradients

WARM = 25  # calls before the first that counts: a GPU's step is compiled on the way
BATCH = {"cnn": 256, "resnet18gn": 32, "transformer": 256}


def cnn() -> nn.Module:
    """The small image network of the Opacus MNIST example: 26,010 parameters."""
    features = (nn.Conv2d(1, 16, 8, 2, 2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh())
    head = (nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))
    return nn.Sequential(*features, *head)


class Residual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.GroupNorm(32, cout), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.GroupNorm(32, cout))
        same = stride == 1 and cin == cout
        down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.GroupNorm(32, cout))
        self.skip = nn.Identity() if same else down

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.skip(x))


def resnet18gn() -> nn.Module:
    """ResNet-18 for 32 x 32 images with GroupNorm: He et al. (2016), arXiv:1512.03385; 11.2 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    cin = 64
    for cout, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(cin, cout, stride), Residual(cout, cout, 1)]
        cin = cout
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5).softmax(-1)
        x = x + self.proj((scores @ v).transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """Four pre-norm encoder layers, width 256, 64 tokens: 3.4 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 256), nn.Embedding(64, 256)
        self.layers = nn.Sequential(*(Encoder(256, 4) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 10)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.head(self.norm(self.layers(self.words(ids) + self.places(places))).mean(1))


MODELS = {"cnn": cnn, "resnet18gn": resnet18gn, "transformer": Transformer}


def records(name: str, n: int) -> tuple[Tensor, Tensor]:
    y = torch.randint(0, 10, (n,))
    if name == "transformer":
        return torch.randint(0, 1000, (n, 64)), y
    return torch.randn(n, *((1, 28, 28) if name == "cnn" else (3, 32, 32))), y


def sample_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(predictions, targets, reduction="none")


class Plain:
    """An ordinary training step without privacy, in one of the two memory orders; in bfloat16 by autocast."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, order: torch.memory_format, bfloat16: bool) -> None:
        self.bfloat16 = bfloat16
        image = x.dim() == 4 and order == torch.channels_last
        self.model = model.to(memory_format=order) if image else model
        self.x, self.y = x.contiguous(memory_format=order) if image else x, y

    def __call__(self) -> None:
        self.model.zero_grad(set_to_none=True)
        with torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = F.cross_entropy(self.model(self.x), self.y, reduction="sum")
        loss.backward()


def build(name: str, args: argparse.Namespace) -> dict[str, object]:
    """The steps to time: plain in its possible forms, and ours."""
    torch.manual_seed(0)
    x, y = (t.to(args.device) for t in records(name, BATCH[name]))
    steps: dict[str, object] = {}
    for form in ("contiguous", "channels_last") if x.dim() == 4 else ("contiguous",):
        order = torch.channels_last if form == "channels_last" else torch.contiguous_format
        plain = Plain(MODELS[name]().to(args.device), x, y, order, args.precision == "bfloat16")
        steps[f"plain {form}"] = plain
    model = MODELS[name]()
    layout = Layout.of(model)
    weights, batch = layout.read(model).to(args.device), Batch(x, y, (x.shape[0],))
    gradients = CohortGradients.of(model, sample_loss, layout)
    gradients.compiled, gradients.autocast = True, args.precision == "bfloat16"
    steps["ours"] = lambda: gradients.sums(weights, batch, 1.0)
    return steps


def clock(steps: dict[str, object], rounds: int, device: str) -> dict[str, float]:
    """Median seconds of each step, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds + 2):
        for name, step in steps.items():
            sync(device)
            start = time.perf_counter()
            step()  # type: ignore[operator]
            sync(device)
            if i >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def peak(name: str, form: str, args: argparse.Namespace) -> dict[str, float]:
    """Peak MB of one step: in all, and above what the process held before it."""
    step = build(name, args)[form]
    step()  # type: ignore[operator]
    if args.device == "cuda":
        base = torch.cuda.memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        step()  # type: ignore[operator]
        top = torch.cuda.max_memory_allocated() / 2**20
    else:
        base = status("VmRSS:")
        Path("/proc/self/clear_refs").write_text("5")
        for _ in range(3):
            step()  # type: ignore[operator]
        top = status("VmHWM:")
    return {"peak_mb": top, "step_mb": top - base}


def in_fresh_process(name: str, form: str, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--models", name, "--device", args.device, "--memory-of", form]
    command += ["--threads", str(args.threads), "--batch", str(args.batch)]
    command += ["--precision", args.precision]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def w3(name: str, args: argparse.Namespace) -> dict[str, object]:
    seconds = clock(build(name, args), args.rounds, args.device)
    best = min((s, form) for form, s in seconds.items() if form != "ours")[1]
    line: dict[str, object] = {"workload": "w3", "model": name, "batch": BATCH[name], "device": args.device}
    line["precision"] = args.precision
    for key, form in (("plain", best), ("ours", "ours")):
        line[key] = {"form": form, "samples_per_s": round(BATCH[name] / seconds[form], 1)}
        if not args.no_memory:
            memory = in_fresh_process(name, form, args)
            line[key] |= {k: round(v, 1) for k, v in memory.items()}  # type: ignore[operator]
    line["speed_ratio"] = round(seconds[best] / seconds["ours"], 3)
    line["speed_ratio_by_form"] = {f: round(s / seconds["ours"], 3) for f, s in seconds.items() if f != "ours"}
    if not args.no_memory:
        line["memory_ratio"] = round(line["ours"]["peak_mb"] / line["plain"]["peak_mb"], 3)  # type: ignore[index]
    if args.check:
        line["error"] = error(name, args)
    return line


def error(name: str, args: argparse.Namespace) -> float:
    """Relative difference from one sample at a time, on a few samples."""
    torch.manual_seed(0)
    model = MODELS[name]().to(args.device)
    layout, (x, y) = Layout.of(model), (t.to(args.device) for t in records(name, 8))
    total = torch.zeros(layout.dim, dtype=torch.float64, device=args.device)
    for i in range(8):
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        flat = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).double()
        total += flat * min(1.0, 1.0 / flat.norm().item())
    gradients = CohortGradients.of(model, sample_loss, layout)
    gradients.autocast = args.precision == "bfloat16"
    got = gradients.sums(layout.read(model), Batch(x, y, (8,)), 1.0)[0]
    return ((got.double() - total).norm() / total.norm()).item()


def clients(args: argparse.Namespace) -> dict[str, object]:
    """w1, w2: every client its own weights; seconds for 6000 samples."""
    torch.manual_seed(0)
    w1 = args.workload == "w1"
    count, size = args.clients or (10 if w1 else 100), 60 if w1 else 10
    drawn = torch.full((count,), size) if args.even else torch.poisson(torch.full((count,), float(size))).int()
    sizes = tuple(int(s) for s in drawn)
    model = cnn()
    layout = Layout.of(model)
    x, y = (t.to(args.device) for t in records("cnn", sum(sizes)))
    weights = layout.read(model).to(args.device) + 0.01 * torch.randn(count, layout.dim, device=args.device)
    gradients, batch = CohortGradients.of(model, sample_loss, layout), Batch(x, y, sizes)
    gradients.compiled, gradients.autocast = True, args.precision == "bfloat16"
    line: dict[str, object] = {"workload": args.workload, "clients": count, "samples": sum(sizes)}
    line |= {"device": args.device, "precision": args.precision}
    seconds: dict[str, list[float]] = {"clip 1.0": [], "clip None": []}
    for i in range(args.rounds + WARM):
        for clip in (1.0, None):
            sync(args.device)
            start = time.perf_counter()
            gradients.sums(weights, batch, clip)
            sync(args.device)
            if i >= WARM:
                seconds[f"clip {clip}"].append(time.perf_counter() - start)
    per = 6000 / sum(sizes)
    line["s_per_6000"] = {k: [round(statistics.median(v) * per, 4), round(min(v) * per, 4)] for k, v in seconds.items()}
    line["samples_per_s"] = {k: round(sum(sizes) / statistics.median(v)) for k, v in seconds.items()}
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=("w3", "w1", "w2"), default="w3")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    precisions = ("float32", "bfloat16")
    parser.add_argument("--precision", choices=precisions, default="float32", help="of passes, on a GPU")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--even", action="store_true", help="as many samples for every client")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--batch", type=int, default=0, help="records a step instead of the model's own number")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # for plain and ours alike
    keep_freed_memory()  # as the simulator does, for plain and ours alike
    if args.batch:
        BATCH.update(dict.fromkeys(BATCH, args.batch))
    if args.memory_of:
        print(json.dumps(peak(args.models, args.memory_of, args)))
    elif args.workload == "w3":
        for name in args.models.split(","):
            print(json.dumps(w3(name, args)), flush=True)
    else:
        print(json.dumps(clients(args)), flush=True)


if __name__ == "__main__":
    main()
