"""Run one attack on a case and compare its answers with the truth, by the kind of the attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import math

import numpy as np
import torch
from scipy.stats import rankdata
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from sordino.attacks.base import MODELS, Bools, Knowledge, Victim
from sordino.audits.bounds import Counts, clopper_pearson, from_rates
from sordino.core.errors import SpecError
from sordino.core.rng import Floats
from sordino.core.types import Batch
from sordino.core.view import View
from sordino.red_team import words
from sordino.red_team.case import AttackCase
from sordino.red_team.words import AttackFigure

RATES = (0.01, 0.001)  # false positive rates at which true positive rates are shown
CONFIDENCE = 0.95  # of the intervals that are shown
SURE = 0.9999  # confidence with which a guarantee is called violated
MOST = 100  # records of one client that are reconstructed, at most
PICTURES = 10  # labels of which a model is asked to show a record
Step = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Answer:
    """What an attack found: figures, and what files and pictures are made of."""

    figures: tuple[AttackFigure, ...]
    what: str = ""  # question of an inference attack, in words
    scores: Floats | None = None  # of a membership attack
    members: Bools | None = None
    made: Tensor | None = None  # of a reconstruction attack, with the originals beside
    true: Tensor | None = None


# --- membership


def membership(attack: Any, case: AttackCase, knowledge: Knowledge) -> Answer:
    """Return how well an attack tells members from other records."""
    scores = np.asarray(attack.score(case.views, knowledge, case.targets), dtype=np.float64)
    if scores.shape != case.members.shape or np.isnan(scores).any():
        raise SpecError(f"{attack.name} must return one number for each of {len(case.members)} records.")
    return Answer(_membership_figures(scores, case.members), scores=scores, members=case.members)


def _membership_figures(scores: Floats, members: Bools) -> tuple[AttackFigure, ...]:
    n, m = int(members.sum()), int((~members).sum())
    ranks = rankdata(scores)
    auc = (ranks[members].sum() - n * (n + 1) / 2) / (n * m)
    error = 1.96 * math.sqrt((auc * (1 - auc) + 0.0) / min(n, m))
    figures = [AttackFigure(words.AUC, auc, max(0.0, auc - error), min(1.0, auc + error), 0.5, words.NUMBER)]
    for rate in measurable(members):
        at = counts_at(scores, members, rate)
        figures.append(share(words.rate_name(rate), at.true_positives, at.positives, rate))
    return (*figures, AttackFigure(words.BALANCED, 0.5, 0.4, 0.6, 0.5))


def counts_at(scores: Floats, members: Bools, rate: float) -> Counts:
    """Return the counts at the threshold that accepts at most this share of the other records."""
    others = np.sort(scores[~members])[::-1]
    allowed = int(rate * len(others) + 1e-9)
    above = scores > others[min(allowed, len(others) - 1)]
    inside, outside = int((above & members).sum()), int((above & ~members).sum())
    return Counts(inside, int(members.sum()), outside, len(others))


def measurable(members: Bools) -> list[float]:
    """Return the false positive rates that so many other records can show."""
    return [rate for rate in RATES if rate * int((~members).sum()) >= 1 - 1e-9]


def at_least(answer: Answer, delta: float) -> float:
    """Return the epsilon that the counts of a membership attack refute with confidence `SURE`.

    The threshold is the k-th largest score of the other records. The probability that a fresh one exceeds it has the
    distribution that the interval of Clopper and Pearson assumes for k - 1 accepted ones, so that the bound holds
    although the threshold was chosen on the same records. The error is divided by the number of thresholds.
    """
    if answer.scores is None or answer.members is None:
        return 0.0
    rates = (*measurable(answer.members), 0.1, 0.5)
    confidence = 1 - (1 - SURE) / len(rates)
    counts = [counts_at(answer.scores, answer.members, rate) for rate in rates]
    return max(from_rates(c, delta, confidence).epsilon for c in counts)


# --- reconstruction


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
    figures = tuple(
        replace(figure, chance=other.value if figure.chance is None else figure.chance)
        for figure, other in zip(real.figures, chance.figures, strict=True)
    )
    return replace(real, figures=figures)


def _guess(case: AttackCase, true: Batch, rng: np.random.Generator) -> Batch:
    """Return records of the same source, drawn at random: what somebody who has not looked would show."""
    known = case.knowledge.auxiliary
    source = case.targets.batch if known is None else known
    picked = torch.from_numpy(rng.permutation(len(source.y))[: len(true.y)])
    if len(picked) < len(true.y):
        picked = torch.from_numpy(rng.integers(0, len(source.y), len(true.y)))
    return source.pick(picked.to(source.y.device), (len(picked),))


def _scores(case: AttackCase, pairs: list[tuple[Batch, Batch]], by_label: bool) -> Answer:
    from sordino.red_team import picture_metrics as pictures

    made, true, right, shared = [], [], [], 0
    for guess, original in pairs:
        x, y = guess.x.detach().to(original.x.device).float(), original.x.float()
        gallery = y if by_label else torch.cat([y, _others(case, y)])
        order = np.arange(len(y)) if by_label else _assigned(pictures.distances(y, x))
        picked = x[torch.from_numpy(order).to(x.device)]
        made.append(picked)
        true.append(y)
        right.append((pictures.distances(picked, gallery).argmin(dim=1).cpu() == torch.arange(len(y))).numpy())
        shared += _shared(guess.y, original.y)
    x, y, hits = torch.cat(made), torch.cat(true), np.concatenate(right)
    spread = float(y.max() - y.min()) or 1.0
    figures = [
        AttackFigure("MSE", float(pictures.mse(x, y).mean()), unit=words.NUMBER),
        AttackFigure("MAE", float(pictures.mae(x, y).mean()), unit=words.NUMBER),
        AttackFigure("PSNR", float(pictures.psnr(x, y, spread).clamp(max=100).mean()), unit=words.DECIBEL),
    ]
    if y.ndim == 4 and min(y.shape[2:]) >= pictures.WINDOW:
        figures.append(AttackFigure(words.SSIM, float(pictures.ssim(x, y, spread).mean()), unit=words.NUMBER))
    figures.append(share(words.IDENTIFIED, int(hits.sum()), len(hits)))
    if not by_label:
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


def inference(attack: Any, case: AttackCase, knowledge: Knowledge) -> Answer:
    raise NotImplementedError


def _shared(made: Tensor, true: Tensor) -> int:
    """Return how many labels two batches share, in whatever order."""
    ours, theirs = (torch.bincount(y.long().cpu().reshape(-1)) for y in (made, true))
    width = min(len(ours), len(theirs))
    return int(torch.minimum(ours[:width], theirs[:width]).sum())


def share(metric: str, hits: int, trials: int, chance: float | None = None) -> AttackFigure:
    """Return a share with its exact interval."""
    low, high = clopper_pearson(hits, trials, CONFIDENCE)
    return AttackFigure(metric, hits / trials, float(low), float(high), chance)
