"""Figures added up batch by batch are those of all records at once, by a second and naive count."""

import math

import numpy as np
import pytest
import torch

from sordino.core.errors import DataError, SpecError
from sordino.tasks.metrics import Meter, task_for

G = torch.Generator().manual_seed(0)
N, CLASSES, TIME, CLIENTS = 90, 5, 4, 7
OWNERS = torch.randint(CLIENTS, (N,), generator=G) * 1000 + 3  # numbers need not be small or dense
LOGITS, LABELS = torch.randn(N, CLASSES, generator=G), torch.randint(CLASSES - 1, (N,), generator=G)  # class 4: none
TEXT, NEXT = torch.randn(N, TIME, CLASSES, generator=G), torch.randint(CLASSES, (N, TIME), generator=G)
CURVE, POWER = torch.rand(N, 1, generator=G), torch.rand(N, generator=G)
DATA = {"classification": (LOGITS, LABELS), "next-token": (TEXT, NEXT), "regression": (CURVE, POWER)}


def metered(task, cuts=(10, 11, 60), clients=True, **options):
    meter = Meter(task, clients=clients, **options)
    predictions, targets = DATA[task]
    for lo, hi in zip((0, *cuts), (*cuts, N), strict=True):
        meter.add(predictions[lo:hi], targets[lo:hi], OWNERS[lo:hi] if clients else None)
    return meter.result()


def per_client(figure):
    return np.array([figure([i for i in range(N) if OWNERS[i] == c]) for c in sorted(set(OWNERS.tolist()))])


def naive_classification():
    guess, truth = LOGITS.numpy().argmax(1), LABELS.numpy()
    right = guess == truth
    classes = np.array([right[truth == c].mean() for c in range(CLASSES) if (truth == c).any()])
    clients = per_client(lambda rows: right[rows].mean())
    return {
        "accuracy": right.mean(), "worst_class": classes.min(), "class_gap": classes.max() - classes.min(),
        "worst_client": clients.min(), "client_gap": clients.max() - clients.min(), "client_std": clients.std(),
    }  # fmt: skip


def naive_next_token():
    x = TEXT.double().numpy()
    loss = np.array([
        [math.log(sum(math.exp(v) for v in x[i, t])) - x[i, t, NEXT[i, t]] for t in range(TIME)] for i in range(N)
    ])  # fmt: skip
    clients = per_client(lambda rows: math.exp(loss[rows].mean()))
    return {
        "accuracy": (x.argmax(2) == NEXT.numpy()).mean(), "perplexity": math.exp(loss.mean()),
        "worst_client": clients.max(), "client_gap": clients.max() - clients.min(), "client_std": clients.std(),
    }  # fmt: skip


def naive_regression():
    error = CURVE.double().numpy()[:, 0] - POWER.double().numpy()
    clients = per_client(lambda rows: np.sqrt((error[rows] ** 2).mean()))
    return {
        "rmse": np.sqrt((error**2).mean()), "mae": np.abs(error).mean(),
        "worst_client": clients.max(), "client_gap": clients.max() - clients.min(), "client_std": clients.std(),
    }  # fmt: skip


NAIVE = {"classification": naive_classification, "next-token": naive_next_token, "regression": naive_regression}


@pytest.mark.parametrize("task", DATA)
def test_figures_are_the_naive_ones(task):
    got, expected = metered(task), NAIVE[task]()
    assert got == pytest.approx(expected, rel=1e-12)
    assert all(type(value) is float for value in got.values())
    assert len({round(v, 6) for v in expected.values()}) == len(expected)  # figures that could not be mistaken


@pytest.mark.parametrize("task", DATA)
def test_batches_do_not_matter_and_nothing_a_record_long_is_kept(task):
    assert metered(task, cuts=(1, 2, 3, 50)) == pytest.approx(metered(task, cuts=()), rel=1e-12)
    meter = Meter(task)
    meter.add(*DATA[task])
    held = [v.numel() for v in vars(meter).values() if isinstance(v, torch.Tensor)]
    assert max(held) <= 2 * CLASSES


@pytest.mark.parametrize("task", DATA)
def test_without_client_numbers_there_are_no_client_figures(task):
    assert not any("client" in name for name in metered(task, clients=False))
    with pytest.raises(DataError, match="clients=True, but client numbers were not given"):
        Meter(task, clients=True).add(*DATA[task])
    with pytest.raises(DataError, match="one whole number for each"):
        Meter(task, clients=True).add(*DATA[task], OWNERS[1:])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_broken_prediction_is_wrong_and_its_error_infinite(bad):
    logits = LOGITS.clone()
    logits[:, 0] = bad
    meter = Meter("classification", clients=True)
    meter.add(logits, torch.zeros(N, dtype=torch.long), OWNERS)
    assert meter.result() == dict.fromkeys(
        ("accuracy", "worst_class", "class_gap", "worst_client", "client_gap", "client_std"), 0.0
    )
    text, curve = TEXT.clone(), CURVE.clone()
    text[3, 1, 2] = curve[3] = bad
    for task, predictions in (("next-token", text), ("regression", curve)):
        meter = Meter(task, clients=True)
        meter.add(predictions, DATA[task][1], OWNERS)
        figures = meter.result()
        accuracy = figures.pop("accuracy", None)
        assert set(figures.values()) == {math.inf}
        assert accuracy is None or 0 < accuracy < 1


def test_a_loss_too_large_for_exp_is_an_infinite_perplexity():
    meter = Meter("next-token")
    meter.add(torch.tensor([[[0.0, 5000.0]]]), torch.tensor([[0]]))
    assert meter.result() == {"accuracy": 0.0, "perplexity": math.inf}


def test_nothing_added_gives_nothing():
    meter = Meter("regression", clients=True)
    meter.add(torch.zeros(0, 1), torch.zeros(0), [])
    assert meter.result() == {}


def test_what_does_not_fit_is_refused():
    with pytest.raises(SpecError, match="task must be one of"):
        Meter("ranking")
    for task, predictions, targets in (
        ("classification", TEXT, NEXT),
        ("classification", LOGITS, LABELS[1:]),
        ("next-token", LOGITS, LABELS),
        ("regression", LOGITS, POWER),
        ("classification", LOGITS, LABELS - 1),
        ("classification", LOGITS, LABELS.float()),
        ("classification", LOGITS[:, :2], LABELS),
    ):
        with pytest.raises(DataError) as error:
            Meter(task).add(predictions, targets)
        assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="there are 2 classes"):
        Meter("classification", classes=2).add(LOGITS, LABELS)


def test_targets_tell_the_task():
    assert [task_for(targets) for _, targets in DATA.values()] == list(DATA)


def test_records_of_nobody_count_for_all_and_for_no_client():
    meter = Meter("classification", CLASSES, clients=True)
    owners = torch.where(OWNERS > 2000, -1, OWNERS)
    meter.add(LOGITS, LABELS, owners)
    known, every = Meter("classification", CLASSES, clients=True), Meter("classification", CLASSES)
    known.add(LOGITS[owners >= 0], LABELS[owners >= 0], owners[owners >= 0])
    every.add(LOGITS, LABELS)
    assert meter.result()["worst_client"] == known.result()["worst_client"]
    assert meter.result()["accuracy"] == every.result()["accuracy"]
    nobody = Meter("classification", CLASSES, clients=True)
    nobody.add(LOGITS, LABELS, torch.full((N,), -1))
    assert nobody.result() == every.result()
