"""How close the records that a reconstruction attack makes are to the originals.

An attack on messages is asked for the records of single clients or, behind a secure sum, of all of them together. The
order of records cannot be known, so each original is compared with the reconstruction that is assigned to it, with the
least total error. An attack on models is asked for one record of every label, which is compared with the mean record of
the members with this label. Guessing shows records of the same source, drawn at random, and is compared likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from sordino.attacks.base import MODELS, Knowledge, Victim
from sordino.core.types import Batch
from sordino.red_team import picture_metrics as pictures
from sordino.red_team import words
from sordino.red_team.case import AttackCase
from sordino.red_team.measure import Answer, share
from sordino.red_team.twin import Step
from sordino.red_team.words import AttackFigure

MOST = 100  # records of one client that are reconstructed, at most
PICTURES = 10  # labels of which a model is asked to show a record


def reconstruction(attack: Any, case: AttackCase, knowledge: Knowledge, victims: int, step: Step) -> Answer:
    """Return how close the records that an attack makes are to the originals."""
    pairs = []
    asked = _victims(attack, case, victims)
    for number, (victim, true) in enumerate(asked):
        step(f"{attack.name} against {words.who(case.viewer)}", number, len(asked))
        made = attack.reconstruct(case.views, knowledge, victim)
        pairs.append((made, true))
    return _compared(case, pairs, attack.reads == MODELS)


def _victims(attack: Any, case: AttackCase, victims: int) -> list[tuple[Victim, Batch]]:
    """Return whose records are reconstructed, with the originals."""
    if attack.reads == MODELS:
        return [_by_label(case)]
    view = next(v for v in case.views if v.seen is not None)
    rng = np.random.default_rng([case.knowledge.seed, 0x71C])
    if view.seen is None or view.seen.ids is None:
        cohort = [c for c in (view.cohort or case.clients) if c in case.clients]
        true = _first(_all_records(case, cohort), MOST)
        return [(Victim(None, view.round, len(true.y)), true)]
    here = [int(c) for c in view.seen.ids if int(c) in case.clients]
    chosen = sorted(rng.permutation(here)[:victims].tolist())
    out = []
    for client in chosen:
        true = _first(case.records_of(client), MOST)
        out.append((Victim(client, view.round, len(true.y)), true))
    return out


def _by_label(case: AttackCase) -> tuple[Victim, Batch]:
    """Return a victim of every label, and the mean member record of each."""
    data = _all_records(case, list(case.clients))
    labels = torch.unique(data.y)[:PICTURES]
    means = torch.stack([data.x[data.y == label].float().mean(dim=0) for label in labels])
    last = max(view.round for view in case.views)
    victim = Victim(None, last, len(labels), tuple(int(label) for label in labels))
    return victim, Batch(means, labels, (len(labels),))


def _all_records(case: AttackCase, clients: Sequence[int]) -> Batch:
    parts = [case.records_of(client) for client in clients]
    return Batch(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), (sum(len(p.y) for p in parts),))


def _first(batch: Batch, most: int) -> Batch:
    count = min(most, len(batch.y))
    return Batch(batch.x[:count], batch.y[:count], (count,))


def _compared(case: AttackCase, pairs: list[tuple[Batch, Batch]], by_label: bool) -> Answer:
    """Return the figures of all reconstructions beside those of records that were merely guessed."""
    rng = np.random.default_rng([case.knowledge.seed, 0x6E5])
    guesses = [(_guess(case, true, rng), true) for _, true in pairs]
    real, chance = (_scores(case, some, by_label) for some in (pairs, guesses))
    guessed = {figure.metric: figure.value for figure in chance.figures}
    if by_label:
        guessed[words.RECOGNISED] = 1 / len(pairs[0][1].y)  # too few for a share of one draw
    return replace(real, figures=tuple(replace(f, chance=guessed.get(f.metric)) for f in real.figures))


def _guess(case: AttackCase, true: Batch, rng: np.random.Generator) -> Batch:
    """Return records of the same source, drawn at random: what somebody who has not looked would show."""
    known = case.knowledge.auxiliary
    source = case.targets.batch if known is None else known
    picked = torch.from_numpy(rng.permutation(len(source.y))[: len(true.y)])
    if len(picked) < len(true.y):
        picked = torch.from_numpy(rng.integers(0, len(source.y), len(true.y)))
    return source.pick(picked.to(source.y.device), (len(picked),))


def _scores(case: AttackCase, pairs: list[tuple[Batch, Batch]], by_label: bool) -> Answer:
    made, true, right, shared = [], [], [], 0
    for guess, original in pairs:
        x, y = guess.x.detach().to(original.x.device).float(), original.x.float()
        gallery = y if by_label else torch.cat([y, _others(case, y)])
        order = np.arange(len(y)) if by_label else _assigned(pictures.distances(y, x))
        picked = x[torch.from_numpy(order).to(x.device)]
        made.append(picked)
        true.append(y)
        right.append((pictures.distances(picked, gallery).argmin(dim=1).cpu() == torch.arange(len(y))).numpy())
        shared += _shared(guess.y, original.y) if bool((guess.y >= 0).all()) else -len(y)  # some read no labels
    x, y, hits = torch.cat(made), torch.cat(true), np.concatenate(right)
    spread = float(y.max() - y.min()) or 1.0
    figures = [
        AttackFigure("MSE", float(pictures.mse(x, y).mean()), unit=words.NUMBER),
        AttackFigure("MAE", float(pictures.mae(x, y).mean()), unit=words.NUMBER),
        AttackFigure("PSNR", float(pictures.psnr(x, y, spread).clamp(max=100).mean()), unit=words.DECIBEL),
    ]
    if y.ndim == 4 and min(y.shape[2:]) >= pictures.WINDOW:
        figures.append(AttackFigure(words.SSIM, float(pictures.ssim(x, y, spread).mean()), unit=words.NUMBER))
    figures.append(share(words.RECOGNISED if by_label else words.IDENTIFIED, int(hits.sum()), len(hits)))
    if not by_label and shared >= 0:
        figures.append(share(words.LABELS, shared, len(hits)))
    return Answer(tuple(figures), made=x, true=y)


def _others(case: AttackCase, like: Tensor) -> Tensor:
    """Return records of others among which the originals hide."""
    batch = case.targets.batch
    outside = torch.from_numpy(np.flatnonzero(~case.members)).to(batch.x.device)
    return batch.x[outside][:MOST].to(like)


def _assigned(distances: Tensor) -> Any:
    """Return, for each original, the reconstruction that belongs to it, with the least total error."""
    rows, columns = linear_sum_assignment(distances.cpu().numpy())
    order = np.zeros(distances.shape[0], dtype=np.int64)
    order[rows] = columns
    return order


def _shared(made: Tensor, true: Tensor) -> int:
    """Return how many labels two batches share, in whatever order."""
    ours, theirs = (torch.bincount(y.long().cpu().reshape(-1)) for y in (made, true))
    width = min(len(ours), len(theirs))
    return int(torch.minimum(ours[:width], theirs[:width]).sum())
