"""Train a small backbone on pictures drawn by random processes: a prior for private learning that costs no privacy.

    python benchmarks/prior/train.py --minutes 5 --out FOLDER                      # all processes, from scratch
    python benchmarks/prior/train.py --minutes 5 --out FOLDER --resume FOLDER      # and five minutes more
    python benchmarks/prior/train.py --help                                        # processes, losses and rates

As Phase I of Tang et al. (2023), "Differentially private image classification by learning priors from random
processes", arXiv:2306.06076: WRN-16-4 learns to recognise two views of one random picture among others. Differences:
the processes are those of `pictures.py`, drawn while the network trains; the two views may show siblings; the loss is
that of SimCLR (Chen et al. 2020, arXiv:2002.05709, Eq. 1), or alignment and uniformity (Wang & Isola 2020,
arXiv:2005.10242, Section 4.1.2) as in the paper; and the network's maps are averaged on a grid of 4 x 4 before the
first dense layer, which keeps the file small.

FOLDER/prior.safetensors holds backbone and head in bfloat16 with the names of their modules, and
FOLDER/prior-optimizer.safetensors what is needed to resume. Wants a GPU. Nothing here reads a record."""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from pictures import PROCESSES, draw
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sordino.models.wide_resnet import wide_resnet

SIDE, STORED = 32, 48  # pixels per side that the network sees, and of a stored picture
HIDDEN, CODE = 768, 128  # units of the head's dense layers, and of the code that the loss compares


class Encoder(nn.Module):
    """WRN-16-4 without its classifier, then a head that only pre-training needs (Tang et al. keep its first layer)."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = wide_resnet((3, SIDE, SIDE), 1)[:9]  # up to the last norm; a rectifier follows
        self.neck = nn.Sequential(nn.Linear(256 * 16, HIDDEN, bias=False), nn.GroupNorm(16, HIDDEN), nn.ReLU())
        self.head = nn.Sequential(
            nn.Linear(HIDDEN, HIDDEN, bias=False),
            nn.GroupNorm(16, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, CODE, bias=False),
        )

    def maps(self, x: Tensor) -> Tensor:
        """Return the backbone's maps of pictures with values about 0.  [n, 3, 32, 32] -> [n, 256, 8, 8]"""
        maps: Tensor = F.relu(self.backbone(x))
        return maps

    def stages(self, x: Tensor) -> list[Tensor]:
        """Return maps of all three widths, normalised and rectified: 64, 128 and 256 channels of sides 32, 16 and 8."""
        out = []
        for i, layer in enumerate(self.backbone):
            x = layer(x)
            if i in (2, 4, 6):
                out.append(F.relu(F.group_norm(x, 16)))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return codes of norm 1.  [n, 3, 32, 32] -> [n, CODE]"""
        code = self.head(self.neck(F.avg_pool2d(self.maps(x), 2).flatten(1)))
        return F.normalize(code.float())


def scaled(pictures: Tensor) -> Tensor:
    """Return uint8 pictures as the network wants them: mean about 0 and variance about 1."""
    return (pictures.float() / 255 - 0.45) * 4


class Pool:
    """A store of drawn pairs, on the device, whose oldest pictures are replaced while the network trains."""

    def __init__(self, names: list[str], size: int, chunk: int, device: torch.device) -> None:
        self.names, self.chunk, self.next = names, chunk, 0
        self.pairs = torch.empty(size, 2, 3, STORED, STORED, dtype=torch.uint8, device=device)
        for _ in range(size // chunk):
            self.replace()

    def replace(self) -> None:
        """Draw one chunk of pairs in place of the oldest one."""
        self.pairs[self.next : self.next + self.chunk] = draw(self.names, self.chunk, STORED, self.pairs.device)
        self.next = (self.next + self.chunk) % len(self.pairs)

    def batch(self, pairs: int, siblings: float) -> Tensor:
        """Return first and second pictures, one after the other; the second is a sibling with that probability."""
        device = self.pairs.device
        rows = torch.randint(0, len(self.pairs), (pairs,), device=device)
        other = (torch.rand(pairs, device=device) < siblings).long()
        return torch.cat([self.pairs[rows, 0], self.pairs[rows, other]])


def augmented(pictures: Tensor, smallest: float) -> Tensor:
    """Return random crops with random colours: as SimCLR, Appendix A, with small turns and without blur.

    Args:
        pictures: [n, 3, STORED, STORED] uint8.
        smallest: least share of a picture's area that a crop shows.
    """
    n, device = len(pictures), pictures.device

    def between(low: float, high: float) -> Tensor:
        return torch.rand(n, device=device) * (high - low) + low

    side, ratio = between(smallest, 1).sqrt(), between(-0.29, 0.29).exp()
    width, height = (side * ratio.sqrt()).clamp_max(1), (side / ratio.sqrt()).clamp_max(1)
    x, y = between(-1, 1) * (1 - width), between(-1, 1) * (1 - height)
    flip, turn = torch.where(between(0, 1) < 0.5, -1.0, 1.0), 0.15 * torch.randn(n, device=device)
    rows = [flip * width * turn.cos(), -width * turn.sin(), x, flip * height * turn.sin(), height * turn.cos(), y]
    grid = F.affine_grid(torch.stack(rows, 1).view(n, 2, 3), [n, 3, SIDE, SIDE], align_corners=False)
    crop = F.grid_sample(scaled(pictures), grid, padding_mode="reflection", align_corners=False)

    grey = torch.full((3, 3), 1 / 3, device=device)
    hue = between(-0.2, 0.2) * 2 * math.pi * (between(0, 1) < 0.8)
    axis = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=device) / 3**0.5
    turned = hue.cos()[:, None, None] * (torch.eye(3, device=device) - grey) + hue.sin()[:, None, None] * axis
    saturation = torch.where(between(0, 1) < 0.2, 0.0, between(0.4, 1.6))[:, None, None]
    contrast, shift = between(0.6, 1.5)[:, None, None], between(-0.5, 0.5)[:, None, None, None]
    colours = (saturation * turned + grey) * contrast
    mean = crop.mean((1, 2, 3), keepdim=True)
    return torch.einsum("nij,njhw->nihw", colours, crop - mean) + mean + shift


def simclr(codes: Tensor, temperature: float = 0.2) -> Tensor:
    """Return the loss of Chen et al., Eq. 1, averaged over all views; rows i and i + n/2 are views of one picture."""
    n = len(codes)
    likeness = (codes @ codes.T / temperature).fill_diagonal_(-1e4)
    return F.cross_entropy(likeness, torch.arange(n, device=codes.device).roll(n // 2))


def alignment(codes: Tensor) -> Tensor:
    """Return alignment plus uniformity (Wang & Isola, Section 4.1.2) with alpha = 2, t = 2 and weights of 1."""
    first, second = codes.chunk(2)
    apart = [torch.pdist(half).square().mul(-2).exp().mean().log() for half in (first, second)]
    return (first - second).square().sum(1).mean() + (apart[0] + apart[1]) / 2


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {"simclr": simclr, "alignment": alignment}


class Muon:
    """Turn matrices by orthogonalised momentum (Jordan et al. 2024, "Muon"), and other parameters by Adam.

    Every matrix of the encoder is followed by something that ignores its scale, so its norm is kept and the rate is the
    length of a step relative to the norm."""

    def __init__(self, module: nn.Module, rate: float, momentum: float = 0.95) -> None:
        self.rate, self.momentum = rate, momentum
        self.matrices = [p for p in module.parameters() if p.ndim > 1]
        self.buffers = [torch.zeros_like(p) for p in self.matrices]
        self.norms = [float(p.detach().norm()) for p in self.matrices]
        self.others = torch.optim.Adam([p for p in module.parameters() if p.ndim == 1], betas=(0.9, 0.98))

    @torch.no_grad()
    def step(self, share: float) -> None:
        """Take one step of `share` times the rate, and forget the gradients."""
        self.others.param_groups[0]["lr"] = 0.1 * self.rate * share
        self.others.step()
        shapes: dict[tuple[int, int], list[int]] = {}
        for i, (p, buffer) in enumerate(zip(self.matrices, self.buffers, strict=True)):
            buffer.lerp_(p.grad, 1 - self.momentum)
            shapes.setdefault((len(p), p[0].numel()), []).append(i)
        for shape, members in shapes.items():
            moves = [self.matrices[i].grad.lerp(self.buffers[i], self.momentum) for i in members]
            turns = orthogonal(torch.stack([move.reshape(shape) for move in moves]))
            for i, turn in zip(members, turns, strict=True):
                p, norm = self.matrices[i], self.norms[i]
                p.sub_(turn.reshape(p.shape), alpha=self.rate * share * norm / min(shape) ** 0.5)
                p.mul_(norm / p.norm())
        for p in (*self.matrices, *self.others.param_groups[0]["params"]):
            p.grad = None


def orthogonal(x: Tensor) -> Tensor:
    """Return about the nearest semi-orthogonal matrices, by five Newton-Schulz steps (Jordan et al. 2024)."""
    tall = x.shape[1] > x.shape[2]
    half = torch.bfloat16 if x.is_cuda else torch.float32
    x = (x.mT if tall else x).to(half)
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Adam:
    """AdamW with the interface of `Muon`."""

    def __init__(self, module: nn.Module, rate: float) -> None:
        self.rate = rate
        self.inner = torch.optim.AdamW(module.parameters(), betas=(0.9, 0.98), weight_decay=0.01)

    def step(self, share: float) -> None:
        """Take one step of `share` times the rate, and forget the gradients."""
        self.inner.param_groups[0]["lr"] = self.rate * share
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--process", default=",".join(PROCESSES), help="processes to draw from, separated by commas")
    parser.add_argument("--siblings", type=float, default=0.5, help="how often the second view shows a sibling")
    parser.add_argument("--loss", choices=LOSSES, default="simclr")
    parser.add_argument("--smallest", type=float, default=0.2, help="least area of a crop")
    parser.add_argument("--optimizer", choices=("muon", "adam"), default="muon")
    parser.add_argument("--rate", type=float, default=0.04, help="relative step of Muon; learning rate of Adam")
    parser.add_argument("--batch", type=int, default=512, help="pairs in a step")
    parser.add_argument("--pool", type=int, default=32768, help="pairs in the store")
    parser.add_argument("--chunk", type=int, default=1024, help="pairs drawn at a time, by one process")
    parser.add_argument("--reuse", type=float, default=8, help="how often a pair is shown before it is replaced")
    parser.add_argument("--minutes", type=float, default=5, help="how long to train, compilation and first store apart")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the two files")
    parser.add_argument("--resume", type=Path, help="folder of a former run")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args(arguments)


def new_encoder(seed: int, device: torch.device) -> Encoder:
    """Return an untrained encoder with weights as channels-last."""
    torch.manual_seed(seed)
    return Encoder().to(device).to(memory_format=torch.channels_last)


def ready(encoder: Encoder, how: argparse.Namespace) -> Callable[[Tensor], Tensor]:
    """Set the device up and return the encoder, compiled unless the options forbid it, after a first pass."""
    device = next(encoder.parameters()).device
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    forward: Callable[[Tensor], Tensor] = torch.compile(encoder) if how.compile else encoder
    start = time.perf_counter()
    views = torch.randn(2 * how.batch, 3, SIDE, SIDE, device=device).contiguous(memory_format=torch.channels_last)
    for _ in range(2):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            forward(views).square().sum().backward()
    encoder.zero_grad(set_to_none=True)
    print(f"  ready after {time.perf_counter() - start:.1f} s", flush=True)
    return forward


def train(
    encoder: Encoder, forward: Callable[[Tensor], Tensor], how: argparse.Namespace, seconds: float
) -> dict[str, float]:
    """Train the encoder for so many seconds and return what happened.

    Args:
        encoder: holds the weights.
        forward: the encoder, perhaps compiled.
        how: see `options`.
        seconds: the rate falls from its peak to zero in this time, after a warm-up of a twentieth of it.
    """
    device = next(encoder.parameters()).device
    begun = time.perf_counter()
    pool = Pool(how.process.split(","), how.pool, min(how.chunk, how.pool), device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    drawn = 2 * how.pool / (time.perf_counter() - begun)
    print(f"  first store: {drawn:.0f} pictures/s", flush=True)
    optimizer = (Muon if how.optimizer == "muon" else Adam)(encoder, how.rate)
    if how.resume and isinstance(optimizer, Muon):
        for buffer, saved in zip(
            optimizer.buffers, load_file(how.resume / "prior-optimizer.safetensors").values(), strict=True
        ):
            buffer.copy_(saved.view(buffer.shape))
    start, steps, shown, said, loss = time.perf_counter(), 0, 0, 0, torch.zeros(())
    while (share := (time.perf_counter() - start) / seconds) < 1:
        views = augmented(pool.batch(how.batch, how.siblings), how.smallest).contiguous(
            memory_format=torch.channels_last
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            codes = forward(views)
        loss = LOSSES[how.loss](codes)
        loss.backward()
        optimizer.step(min(20 * share, (1 - share) / 0.95))
        steps += 1
        shown += how.batch
        if shown >= how.chunk * how.reuse:
            shown = 0
            pool.replace()
        if steps % 8 == 0:
            value = loss.item()  # also keeps the host from running ahead of the device, which would spoil the clock
            if share * 20 >= said:
                said += 1
                print(f"  {time.perf_counter() - start:6.1f} s  step {steps}  loss {value:.3f}", flush=True)
    passed = time.perf_counter() - start
    if how.out:
        save(encoder, optimizer, how.out)
    return {"steps": steps, "pairs/s": steps * how.batch / passed, "pictures drawn/s": drawn, "loss": loss.item()}


def save(encoder: Encoder, optimizer: Muon | Adam, folder: Path) -> None:
    """Write weights and momentum in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: t.to(torch.bfloat16).contiguous() for name, t in encoder.state_dict().items()},
        folder / "prior.safetensors",
    )
    if isinstance(optimizer, Muon):
        momenta = {f"{i:02d}": b.to(torch.bfloat16).contiguous() for i, b in enumerate(optimizer.buffers)}
        save_file(momenta, folder / "prior-optimizer.safetensors")


def main() -> None:
    """Train, save and say how fast."""
    how = options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = new_encoder(how.seed, device)
    if how.resume:
        encoder.load_state_dict(load_file(how.resume / "prior.safetensors"))
    print(train(encoder, ready(encoder, how), how, 60 * how.minutes), flush=True)


if __name__ == "__main__":
    main()
