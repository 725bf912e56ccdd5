"""Draw small colour pictures by random processes, in batches on one device; no camera took any of them.

    python benchmarks/prior/pictures.py sheet.png     # eight pairs of every process, side by side

Processes in the spirit of Baradad et al. (2021), "Learning to see by looking at noise", arXiv:2106.05963, Section 3:

- `spectral`: Gaussian fields with random power-law or band-pass spectra and random marginals (statistical models);
- `formulas`: small random networks of the coordinates (Stanley 2007, "Compositional pattern producing networks");
- `generators`: untrained style-based generators with oriented, sparse filters, a new one for every few pictures;
- `leaves`: dead leaves with power-law sizes, many shapes, textures and shading (Lee, Mumford & Huang 2001);
- `scenes`: creatures made of mirrored parts before a cluttered background, lit from one side (not in the paper).

Every process returns PAIRS of pictures [n, 2, 3, side, side] in [0, 1]. The second picture is a sibling of the first:
it has the same hidden parameters (a generator's style, a creature's parts, a palette with its textures) but was drawn
again (noise, arrangement, pose, background, light). A training loop may use siblings, or the first pictures only.
Everything is drawn from torch's global generators, so `torch.manual_seed` makes a run repeatable."""

import math
import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

OPPONENT = ((1.0, 1.0, 1.0), (1.0, -1.0, 0.0), (0.5, 0.5, -1.0))  # brightness, red - green, yellow - blue
TEXTURES = 256  # textures drawn for a batch of leaves or scenes, which share them


def uniform(low: float, high: float, *shape: int, device: torch.device) -> Tensor:
    """Return uniform numbers between low and high."""
    return torch.rand(*shape, device=device) * (high - low) + low


def log_uniform(low: float, high: float, *shape: int, device: torch.device) -> Tensor:
    """Return numbers between low and high whose logarithms are uniform."""
    return uniform(math.log(low), math.log(high), *shape, device=device).exp()


def standardised(x: Tensor) -> Tensor:
    """Return every picture or field with mean 0 and variance 1 over its last two axes."""
    return (x - x.mean((-2, -1), keepdim=True)) / (x.std((-2, -1), keepdim=True) + 1e-5)


def coordinates(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the coordinates across and down of the pixels' centres, from -1 to 1.  [1, side], [side, 1]"""
    t = (torch.arange(side, device=device) + 0.5) * (2 / side) - 1
    return t[None, :], t[:, None]


def opponent_basis(device: torch.device) -> Tensor:
    """Return an orthonormal basis of colours: brightness and two opponent directions.  [3, 3]"""
    return F.normalize(torch.tensor(OPPONENT, device=device))


def palettes(n: int, colours: int, device: torch.device) -> Tensor:
    """Return n palettes, in which brightness varies more than colour does.  [n, colours, 3] in [0, 1]"""
    centre = torch.randn(n, 1, 3, device=device) * torch.tensor([0.25, 0.07, 0.07], device=device)
    spread = torch.stack([log_uniform(*ends, n, device=device) for ends in ((0.12, 0.5), (0.01, 0.2), (0.01, 0.2))], -1)
    colour = centre + torch.randn(n, colours, 3, device=device) * spread[:, None]
    return (0.5 + colour @ opponent_basis(device)).clamp(0, 1)


def fields(n: int, channels: int, side: int, device: torch.device) -> Tensor:
    """Return standardised random fields; all channels of one item share spectrum and marginal.

    Two thirds have amplitudes |k|^-a, stretched in a random direction; the others concentrate on one wave vector."""
    k = torch.fft.fftfreq(side, device=device) * side
    angle = uniform(0, math.pi, n, 1, 1, device=device)
    along = angle.cos() * k + angle.sin() * k[:, None]
    across = -angle.sin() * k + angle.cos() * k[:, None]
    stretch = log_uniform(1, 4, n, 1, 1, device=device)
    decay = uniform(0.6, 2.6, n, 1, 1, device=device)
    law = (along.square() * stretch + across.square() / stretch + 0.5).pow(-decay / 2)
    wave = log_uniform(2, side / 4, n, 1, 1, device=device)
    width = wave * uniform(0.08, 0.5, n, 1, 1, device=device) + 0.4
    band = torch.exp(-((along.abs() - wave).square() + across.square()) / (2 * width.square())) + 0.05 * law
    amplitude = torch.where(torch.rand(n, 1, 1, device=device) < 0.67, law, band)
    noise = torch.fft.rfft2(torch.randn(n, channels, side, side, device=device))
    field = standardised(torch.fft.irfft2(noise * amplitude[:, None, :, : side // 2 + 1], s=(side, side)))
    power = log_uniform(0.3, 2.0, n, 1, 1, 1, device=device)
    return standardised(field.sign() * (field.abs() + 1e-4).pow(power))


def spectral(n: int, side: int, device: torch.device) -> Tensor:
    """Return fields whose opponent channels are mixed; siblings share palette and spectrum only by chance."""
    field = fields(n, 3, side, device)
    spread = palettes(n, 8, device)
    centre, basis = spread.mean(1), (spread[:, :3] - spread.mean(1, keepdim=True)) * 0.8
    picture = (centre[:, :, None, None] + torch.einsum("nij,nihw->njhw", basis, field)).clamp(0, 1)
    return picture[:, None].expand(-1, 2, -1, -1, -1)


def formulas(n: int, side: int, device: torch.device, width: int = 14, layers: int = 3) -> Tensor:
    """Return random networks of warped coordinates.  Siblings have the same network and a moved, turned window."""
    x, y = coordinates(side, device)
    zoom = log_uniform(0.25, 2.5, n, 2, 1, 1, device=device).mean(1, keepdim=True).expand(-1, 2, -1, -1)
    turn = uniform(-math.pi, math.pi, n, 2, 1, 1, device=device)
    shift = torch.randn(n, 2, 2, 1, 1, device=device) * 0.7
    warp = fields(2 * n, 2, side, device).view(n, 2, 2, side, side)
    warp = warp * log_uniform(0.002, 0.12, n, 1, 1, 1, 1, device=device)
    u = zoom * (turn.cos() * x + turn.sin() * y) + shift[:, :, 0] + warp[:, :, 0]
    v = zoom * (turn.cos() * y - turn.sin() * x) + shift[:, :, 1] + warp[:, :, 1]
    inputs = torch.stack([u, v, torch.hypot(u, v), torch.ones_like(u)], -1)
    h = inputs.reshape(n, 2 * side * side, 4)
    for layer in range(layers):
        weight = torch.randn(n, h.shape[-1], width, device=device) * (1.6 if layer == 0 else 1.7 / width**0.5)
        h = torch.baddbmm(torch.randn(n, 1, width, device=device) * 0.5, h, weight)
        kind = torch.randint(0, 5, (n, 1, width), device=device)
        waves = torch.where(kind < 2, torch.sin(2 * h), torch.tanh(2 * h))
        bells = torch.where(kind == 3, torch.exp(-2 * h.square()), (h.remainder(2) - 1).abs())
        h = torch.where(kind < 3, waves, bells)
    weight = torch.randn(n, width, 3, device=device) * torch.tensor([1.0, 0.3, 0.3], device=device)
    raw = torch.bmm(h - h.mean(1, keepdim=True), weight @ opponent_basis(device))
    scale = log_uniform(0.1, 0.4, n, 1, 1, device=device) / raw.std((1, 2), keepdim=True).clamp_min(1e-3)
    picture = (palettes(n, 4, device).mean(1, keepdim=True) + raw * scale).clamp(0, 1)
    return picture.view(n, 2, side, side, 3).permute(0, 1, 4, 2, 3)


def oriented_filters(after: int, before: int, device: torch.device) -> Tensor:
    """Return random 3 x 3 filters: a sparse mix of blobs, edges and bars, one direction for an output channel."""
    angle = uniform(0, math.pi, after, 1, 1, 1, device=device)
    x, y = torch.meshgrid(*(torch.arange(-1.0, 2.0, device=device),) * 2, indexing="xy")
    bell = torch.exp(-(x.square() + y.square()) / 1.6)
    u = angle.cos() * x + angle.sin() * y
    edge, bar = u * bell, (u.square() - 0.7) * bell
    kinds = torch.stack([(bell / bell.norm()).expand_as(edge), edge / edge.norm(), bar / bar.norm()])
    share = torch.rand(3, after, 1, 1, 1, device=device).pow(2) * torch.tensor([0.3, 1, 1], device=device).view(
        3, 1, 1, 1, 1
    )
    mix = (kinds * share / share.sum(0, keepdim=True)).sum(0)
    amount = torch.randn(after, before, 1, 1, device=device) * (torch.rand(after, before, 1, 1, device=device) < 0.3)
    weight = amount * mix + 0.1 * torch.randn(after, before, 3, 3, device=device) / 3
    return weight / weight.flatten(1).norm(dim=1)[:, None, None, None]


def generators(n: int, side: int, device: torch.device, each: int = 128, width: int = 48) -> Tensor:
    """Return pictures of untrained generators, `each` pairs per generator.  Siblings share style and coarse noise.

    Like the oriented variant of Baradad et al., Section 3.3: convolutions modulated by a style, noise and upsampling
    (Karras et al. 2019, arXiv:1812.04948, Figure 1b)."""
    parts = []
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    for start in range(0, n, each):
        m = min(each, n - start)
        style = torch.randn(m, 1, 64, device=device).expand(-1, 2, -1).reshape(2 * m, 64)
        size = side // 8
        coarse = (torch.randn(m, 1, width, size, size, device=device)).expand(-1, 2, -1, -1, -1)
        x = (coarse + 0.5 * torch.randn(m, 2, width, size, size, device=device)).reshape(2 * m, width, size, size)
        x = x.to(half).contiguous(memory_format=torch.channels_last)
        roughness, slope = float(log_uniform(0.05, 0.5, 1, device=device)), float(uniform(-0.5, 0.3, 1, device=device))
        for level in range(4):
            for _ in range(2 if level else 1):
                scale = 1 + 0.8 * style @ torch.randn(64, width, device=device) / 8
                noise = torch.randn(2 * m, 1, size, size, device=device) * roughness * 0.7**level
                gains = torch.randn(width, 1, 1, device=device)
                x = F.pad(x * scale[:, :, None, None].to(half), (1, 1, 1, 1), mode="replicate")
                x = F.conv2d(x, oriented_filters(width, width, device).to(half))
                x = x.float() / (x.float().square().mean((1, 2, 3), keepdim=True).sqrt() + 1e-4)
                bias = 0.4 * style @ torch.randn(64, width, device=device) / 8
                x = F.leaky_relu(x + noise * gains + bias[:, :, None, None], slope).to(half)
            if level < 3:
                size *= 2
                x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
        colour = torch.randn(3, width, device=device) * torch.tensor([[1.0], [0.3], [0.3]], device=device)
        raw = torch.einsum("ci,cj,nihw->njhw", colour, opponent_basis(device), x.float())
        raw = standardised(raw) * raw.std((2, 3), keepdim=True)
        raw = raw / (1 + 0.3 * raw.abs() / raw.std((1, 2, 3), keepdim=True).clamp_min(1e-3))
        spread = log_uniform(0.1, 0.35, m, 1, device=device).expand(-1, 2).reshape(-1, 1, 1, 1)
        raw = raw / raw.std((1, 2, 3), keepdim=True).clamp_min(1e-3) * spread
        centre = palettes(m, 4, device).mean(1, keepdim=True).expand(-1, 2, -1).reshape(2 * m, 3, 1, 1)
        parts.append((centre + raw).clamp(0, 1).view(m, 2, 3, side, side))
    return torch.cat(parts)


def textures(n: int, side: int, device: torch.device) -> Tensor:
    """Return textures with mean 0, drawn by the processes without shapes.  [n, 3, side, side]"""
    third = n // 3
    drawn = [spectral(n - 2 * third, side, device), formulas(third, side, device), generators(third, side, device)]
    bank = torch.cat([pair[:, 0] for pair in drawn])
    bank = bank - bank.mean((2, 3), keepdim=True)
    bank = bank / bank.std((1, 2, 3), keepdim=True).clamp_min(0.02)
    return bank[torch.randperm(n, device=device)]


class Shapes:
    """Random outlines with colours, textures and shading: one per row, to be painted anywhere and at any size."""

    def __init__(self, n: int, colour: Tensor, bank: Tensor) -> None:
        """Draw n outlines.

        Args:
            n: number of shapes.
            colour: [n, 3].
            bank: textures [k, 3, side, side], of which every shape gets one at random.
        """
        device = colour.device
        self.colour, self.bank = colour, bank
        self.power = log_uniform(1.0, 8, n, device=device)  # of a superellipse: 1 is a rhombus, 2 an ellipse, 8 a box
        self.petals = torch.randint(2, 8, (n,), device=device).float()
        self.star = torch.rand(n, device=device).pow(2) * 0.5 * (torch.rand(n, device=device) < 0.5)
        self.phase = uniform(0, 2 * math.pi, n, device=device)
        self.texture = torch.randint(0, len(bank), (n,), device=device)
        self.contrast = log_uniform(0.02, 0.25, n, device=device) * (torch.rand(n, device=device) < 0.7)
        self.zoom = log_uniform(0.3, 1.0, n, device=device)  # how much of the texture the shape shows
        self.relief = uniform(0, 0.35, n, device=device) * (torch.rand(n, device=device) < 0.6)
        self.ring = uniform(-0.3, 0.3, n, device=device) * (torch.rand(n, device=device) < 0.25)  # a darker outline

    def paint(
        self, canvas: Tensor, rows: Tensor, affine: Tensor, light: Tensor, visible: Tensor, soft: Tensor,
        colour: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the canvas with one shape painted on every picture.

        Args:
            canvas: [m, 3, side, side].
            rows: [m], which shape goes where.
            affine: [m, 2, 3], from the canvas's coordinates (x, y, 1) to the shape's, in which it has about radius 1.
            light: [m, 2], direction and strength of the light.
            visible: [m], 1, or 0 for a shape that is left out.
            soft: [m], width of the edge in pixels.
            colour: [m, 3] instead of the shapes' own.
        """
        side = canvas.shape[-1]
        x, y = coordinates(side, canvas.device)
        a = affine[:, :, :, None, None]
        u, v = a[:, 0, 0] * x + a[:, 0, 1] * y + a[:, 0, 2], a[:, 1, 0] * x + a[:, 1, 1] * y + a[:, 1, 2]

        def column(t: Tensor) -> Tensor:
            return t[rows][:, None, None]

        power = column(self.power)
        radius = ((u.abs() + 1e-4).pow(power) + (v.abs() + 1e-4).pow(power)).pow(1 / power)
        radius = radius / (
            1 + column(self.star) * torch.cos(column(self.petals) * torch.atan2(v, u) + column(self.phase))
        )
        area = affine[:, 0, 0] * affine[:, 1, 1] - affine[:, 0, 1] * affine[:, 1, 0]
        size = area.abs().clamp_min(1e-4).rsqrt()[:, None, None] * (side / 2)  # in pixels
        alpha = torch.sigmoid((1 - radius) * size * (4 / soft[:, None, None])) * visible[:, None, None]
        inside = radius.clamp(0, 1)
        across = light[:, 0, None, None] * u + light[:, 1, None, None] * v
        shade = column(self.relief) * (across - 0.4 * inside.square()) + column(self.ring) * inside.pow(8)
        grid = torch.stack([u, v], -1) * self.zoom[rows][:, None, None, None]
        skin = F.grid_sample(self.bank[self.texture[rows]], grid, padding_mode="reflection", align_corners=False)
        colour = (self.colour[rows] if colour is None else colour)[:, :, None, None]
        colour = colour + self.contrast[rows][:, None, None, None] * skin + shade[:, None]
        return torch.lerp(canvas, colour.clamp(0, 1), alpha[:, None])


def placed(centre: Tensor, radii: Tensor, angle: Tensor) -> Tensor:
    """Return maps from canvas coordinates into those of shapes at `centre` [m, 2] with `radii` [m, 2].  [m, 2, 3]"""
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], 1) / radii[:, :, None]
    return torch.cat([turn, -(turn @ centre[:, :, None])], 2)


def backgrounds(n: int, side: int, device: torch.device) -> Tensor:
    """Return smooth pictures to paint on: stretched gradients of two colours.  [n, 3, side, side]"""
    colour = palettes(n, 3, device)
    field = F.interpolate(fields(n, 2, 16, device), size=(side, side), mode="bicubic", align_corners=False)
    mix = torch.sigmoid(field * log_uniform(0.1, 2, n, 1, 1, 1, device=device))
    base, first, second = (colour[:, i, :, None, None] for i in range(3))
    return base + (first - base) * mix[:, :1] + (second - base) * 0.5 * mix[:, 1:]


def leaves(n: int, side: int, device: torch.device, layers: int = 36) -> Tensor:
    """Return dead leaves.  Siblings share palette, sizes, outlines and textures, arranged anew."""
    kinds = 6  # different outlines on one picture
    bank = textures(TEXTURES, side, device)
    colours = palettes(n, kinds, device)
    shapes = Shapes(n * kinds, colours.view(-1, 3), bank)
    canvas = backgrounds(n, side, device)[:, None].expand(-1, 2, -1, -1, -1).reshape(2 * n, 3, side, side)
    owner = torch.arange(n, device=device).repeat_interleave(2)
    smallest, steepness = log_uniform(0.05, 0.35, n, device=device)[owner], uniform(0.6, 2.5, n, device=device)[owner]
    slim, turned = uniform(0, 0.8, n, device=device)[owner], torch.rand(n, device=device)[owner] < 0.5
    lean = uniform(-math.pi, math.pi, n, device=device)[owner]
    light = torch.randn(n, 2, device=device)[owner]
    jitter = log_uniform(0.01, 0.15, n, device=device)[owner]
    soft = log_uniform(0.7, 2.5, 2 * n, device=device)
    m = 2 * n
    for _ in range(layers):
        rows = owner * kinds + torch.randint(0, kinds, (m,), device=device)
        size = smallest * (torch.rand(m, device=device) + 1e-3).pow(-1 / (steepness + 0.5)).clamp_max(8)
        ratio = torch.exp(slim * torch.randn(m, device=device))
        radii = torch.stack([size * ratio.sqrt(), size / ratio.sqrt()], -1).clamp(0.04, 1.2)
        angle = torch.where(turned, uniform(-math.pi, math.pi, m, device=device), lean)
        where = uniform(-1.1, 1.1, m, 2, device=device)
        affine = placed(where, radii, angle)
        shade = (light + 0.3 * torch.randn(m, 2, device=device)) * 0.7
        colour = shapes.colour[rows] + jitter[:, None] * torch.randn(m, 3, device=device)
        canvas = shapes.paint(canvas, rows, affine, shade, torch.ones(m, device=device), soft, colour)
    return canvas.view(n, 2, 3, side, side)


def scenes(n: int, side: int, device: torch.device, parts: int = 6) -> Tensor:
    """Return creatures before clutter.  Siblings show the same creature in another pose, place and light."""
    bank = textures(TEXTURES, side, device)
    m = 2 * n
    owner = torch.arange(n, device=device).repeat_interleave(2)
    canvas = backgrounds(m, side, device)
    soft = log_uniform(0.7, 2.5, m, device=device)
    light = torch.randn(m, 2, device=device) * 0.6
    clutter = 8
    around = Shapes(m * clutter, palettes(m, clutter, device).view(-1, 3), bank)
    amount = torch.rand(m, device=device)
    for i in range(clutter):
        rows = torch.arange(m, device=device) * clutter + i
        radii = log_uniform(0.12, 1.6, m, 2, device=device)
        level = torch.rand(m, device=device) < 0.5  # half of the shapes lie level, like ground, sky or walls
        angle = torch.where(level, 0.1 * torch.randn(m, device=device), uniform(-math.pi, math.pi, m, device=device))
        where = uniform(-1.2, 1.2, m, 2, device=device)
        visible = (torch.rand(m, device=device) < amount).float()
        canvas = around.paint(canvas, rows, placed(where, radii, angle), light, visible, soft)

    body = Shapes(n * parts, palettes(n, parts, device).view(-1, 3), bank)
    like_body = (torch.rand(n, parts, 1, device=device) < 0.5).float()  # parts that have the body's colour and texture
    colour = body.colour.view(n, parts, 3)
    body.colour = torch.lerp(colour, colour[:, :1], like_body).reshape(-1, 3)
    body.texture = torch.where(
        like_body[..., 0] > 0, body.texture.view(n, parts)[:, :1], body.texture.view(n, parts)
    ).flatten()
    mirrored = (torch.rand(n, parts, device=device) < 0.6).float()
    present = (torch.rand(n, parts, device=device) < 0.7).float()
    present[:, 0], mirrored[:, 0] = 1, 0
    radii = log_uniform(0.08, 0.5, n, parts, 2, device=device)
    radii[:, 0] = log_uniform(0.35, 0.9, n, 2, device=device)
    attach = uniform(-math.pi, math.pi, n, parts, device=device)
    offset = (
        torch.stack([attach.cos(), attach.sin()], -1) * radii[:, :1] * uniform(0.3, 1.2, n, parts, 1, device=device)
    )
    offset[:, 0] = 0
    tilt = uniform(-math.pi, math.pi, n, parts, device=device)
    tilt[:, 0] = 0
    upright = torch.randint(0, 4, (n,), device=device)[owner] * (math.pi / 2)

    pose = 0.35 * torch.randn(m, device=device) + upright
    size = log_uniform(0.35, 1.0, m, 1, device=device) * torch.exp(0.2 * torch.randn(m, 2, device=device))
    world = placed(uniform(-0.4, 0.4, m, 2, device=device), size, pose)
    flip = torch.where(torch.rand(m, device=device) < 0.5, -1.0, 1.0)
    tint = 0.06 * torch.randn(m, 3, device=device)
    order = torch.cat([torch.randperm(parts - 1) + 1, torch.zeros(1, dtype=torch.long)])
    order = order.roll(int(torch.randint(0, parts, (1,))))  # some parts are behind the body, others before it
    for part in order.tolist():
        for sign in (1.0, -1.0):
            if part == 0 and sign < 0:
                continue
            shown = present[owner, part] * (mirrored[owner, part] if sign < 0 else 1)
            wiggle = 0.15 * torch.randn(m, device=device)
            local = placed(offset[owner, part], radii[owner, part], tilt[owner, part] + wiggle)
            local = local * torch.stack([flip * sign, torch.ones_like(flip), torch.ones_like(flip)], -1)[:, None]
            affine = torch.cat(
                [local[:, :, :2] @ world[:, :, :2], local[:, :, :2] @ world[:, :, 2:] + local[:, :, 2:]], 2
            )
            canvas = body.paint(canvas, owner * parts + part, affine, light, shown, soft)
    return (canvas + tint[:, :, None, None]).clamp(0, 1).view(n, 2, 3, side, side)


PROCESSES: dict[str, Callable[[int, int, torch.device], Tensor]] = {
    "spectral": spectral, "formulas": formulas, "generators": generators, "leaves": leaves, "scenes": scenes,
}  # fmt: skip


def finished(pictures: Tensor) -> Tensor:
    """Return pictures as a cheap lens would: some blur and a little noise, of random strength, as uint8."""
    n, two, _, side, _ = pictures.shape
    x = pictures.reshape(n * two, 3, side, side)
    blur = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    x = torch.lerp(x, blur, torch.rand(len(x), 1, 1, 1, device=x.device))
    x = x + 0.02 * torch.rand(len(x), 1, 1, 1, device=x.device) * torch.randn_like(x)
    return (x.clamp(0, 1) * 255).round().to(torch.uint8).view(n, two, 3, side, side)


@torch.no_grad()
def draw(names: Sequence[str], n: int, side: int, device: torch.device) -> Tensor:
    """Return n pairs of one process, drawn at random from `names`.  [n, 2, 3, side, side] uint8"""
    name = names[int(torch.randint(0, len(names), (1,)))]
    return finished(PROCESSES[name](n, side, device))


def main() -> None:
    """Write eight pairs of every process to a PNG file, and the pictures drawn in a second."""
    import time

    from PIL import Image

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    rows = []
    for name in PROCESSES:
        start = time.perf_counter()
        pairs = draw([name], 24, 48, device).cpu()
        print(f"{name}: {48 / (time.perf_counter() - start):.0f} pictures/s", flush=True)
        rows += [pairs[i : i + 8].reshape(16, 3, 48, 48) for i in range(0, 24, 8)]
    sheet = torch.stack(rows).permute(0, 3, 1, 4, 2).reshape(len(rows) * 48, 16 * 48, 3)
    Image.fromarray(sheet.numpy()).resize((16 * 96, len(rows) * 96)).save(sys.argv[1])


if __name__ == "__main__":
    main() if len(sys.argv) > 1 else sys.exit(__doc__)
