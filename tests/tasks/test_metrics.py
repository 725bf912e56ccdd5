"""Figures added up batch by batch are those of all records at once: by a naive count, and by scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from sordino.core.errors import DataError, SpecError
from sordino.tasks.metrics import NAMES, Meter
from sordino.tasks.task import check_multi_label, task_of
from support.errors import one_line_error

G = torch.Generator().manual_seed(0)
N, CLASSES, TIME, CLIENTS = 90, 5, 4, 7
OWNERS = torch.randint(CLIENTS, (N,), generator=G) * 1000 + 3  # numbers need not be small or dense
LOGITS, LABELS = torch.randn(N, CLASSES, generator=G), torch.randint(CLASSES - 1, (N,), generator=G)  # class 4: none
TEXT, NEXT = torch.randn(N, TIME, CLASSES, generator=G), torch.randint(CLASSES, (N, TIME), generator=G)
CURVE, POWER = torch.rand(N, 1, generator=G), torch.rand(N, generator=G)
ODDS, MARKS = torch.randn(N, 3, generator=G), torch.randint(2, (N, 3), generator=G)
DATA = {
    "classification": (LOGITS, LABELS), "multi-label": (ODDS, MARKS), "next-token": (TEXT, NEXT),
    "regression": (CURVE, POWER),
}  # fmt: skip


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
    return learnt_classes(LOGITS, LABELS) | {
        "accuracy": right.mean(), "worst_class": classes.min(), "class_gap": classes.max() - classes.min(),
        "worst_client": clients.min(), "client_gap": clients.max() - clients.min(), "client_std": clients.std(),
    }  # fmt: skip


def learnt_classes(logits, labels):
    """The metrics of several classes by scikit-learn; the area is over the classes that some record has."""
    p, truth = logits.double().softmax(1).numpy(), labels.numpy()
    guess, hot = p.argmax(1), np.eye(p.shape[1])[truth]
    both = [c for c in range(p.shape[1]) if 0 < hot[:, c].sum() < len(truth)]
    top, bins = p.max(1), np.ceil(p.max(1) * 15)
    return {
        "balanced_accuracy": sk.recall_score(truth, guess, average="macro", labels=np.unique(truth), zero_division=0),
        "macro_f1": sk.f1_score(truth, guess, average="macro", zero_division=0),
        "auc": np.mean([sk.roc_auc_score(hot[:, c], p[:, c]) for c in both]),
        "brier": ((p - hot) ** 2).sum(1).mean() / 2,
        "calibration_error": sum(
            abs(((guess == truth).astype(float) - top)[bins == b].sum()) for b in np.unique(bins)
        ) / len(truth),
    }  # fmt: skip


def naive_multi_label():
    guess, truth = ODDS.numpy() > 0, MARKS.numpy()
    right = guess == truth
    clients = per_client(lambda rows: right[rows].mean())
    return {
        "accuracy": right.mean(), "micro_f1": sk.f1_score(truth, guess, average="micro"),
        "macro_f1": sk.f1_score(truth, guess, average="macro"), "auc": sk.roc_auc_score(truth, ODDS.numpy()),
        "exact_match": sk.accuracy_score(truth, guess), "worst_client": clients.min(),
        "client_gap": clients.max() - clients.min(), "client_std": clients.std(),
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
        "r2": sk.r2_score(POWER.double(), CURVE.double()),
        "worst_client": clients.max(), "client_gap": clients.max() - clients.min(), "client_std": clients.std(),
    }  # fmt: skip


NAIVE = {
    "classification": naive_classification, "multi-label": naive_multi_label, "next-token": naive_next_token,
    "regression": naive_regression,
}  # fmt: skip


@pytest.mark.parametrize("task", DATA)
def test_figures_are_the_naive_ones(task):
    got, expected = metered(task), NAIVE[task]()
    assert got == pytest.approx(expected, rel=1e-12)
    assert all(type(value) is float for value in got.values())
    assert len({round(v, 6) for v in expected.values()}) == len(expected)  # figures that could not be mistaken


@pytest.mark.parametrize("task", DATA)
def test_batches_do_not_matter(task):
    assert metered(task, cuts=(1, 2, 3, 50)) == pytest.approx(metered(task, cuts=()), rel=1e-12)
    assert set(metered(task)) <= {*NAMES[task], "worst_client", "client_gap", "client_std"}


def test_two_classes_have_the_f1_and_area_of_the_second_whatever_the_scale():
    logits, labels = torch.randn(N, 2, generator=G), (torch.rand(N, generator=G) < 0.2).long()
    logits[::7] = 0.0  # equal scores count half
    for scale in (1e-6, 1.0, 1e4):
        meter = Meter("classification")
        meter.add(logits * scale, labels)
        found = meter.result()
        margin, guess = (logits[:, 1] - logits[:, 0]).numpy(), logits.argmax(1).numpy()
        assert found["auc"] == pytest.approx(sk.roc_auc_score(labels, margin), abs=1e-12)
        assert found["f1"] == pytest.approx(sk.f1_score(labels, guess))
        assert meter.confusion() == sk.confusion_matrix(labels, guess).tolist()
        if scale == 1:
            p = logits.double().softmax(1)[:, 1]
            assert found["brier"] == pytest.approx(sk.brier_score_loss(labels, p))
    assert "macro_f1" not in found and found["auc"] not in (0.5, 1.0)


def test_what_is_not_defined_is_left_out():
    meter = Meter("classification")
    meter.add(torch.randn(5, 2, generator=G), torch.zeros(5, dtype=torch.long))
    assert "auc" not in meter.result()  # of one class only
    many = Meter("classification")
    many.add(torch.randn(5, 31, generator=G), torch.arange(5))
    assert "auc" not in many.result() and many.confusion() is None and "balanced_accuracy" in many.result()
    flat = Meter("regression")
    flat.add(torch.zeros(4), torch.full((4,), 1e6))
    assert "r2" not in flat.result()
    far = Meter("regression")  # large targets lose no digits
    far.add(CURVE[:, 0].double() + 1e7, POWER.double() + 1e7)
    assert far.result()["r2"] == pytest.approx(sk.r2_score(POWER.double(), CURVE.double()), rel=1e-5)


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
    zero = ("accuracy", "balanced_accuracy", "macro_f1", "worst_class", "class_gap")
    expected = dict.fromkeys((*zero, "worst_client", "client_gap", "client_std"), 0.0)
    assert meter.result() == expected | {"brier": 1.0, "calibration_error": 1.0}
    half = LOGITS[:, :2].clone()
    half[LABELS == 1, 0] = bad  # every record of the second class is broken, so it ranks below all others
    binary = Meter("classification")
    binary.add(half, (LABELS == 1).long())
    assert binary.result()["auc"] == 0.0
    text, curve = TEXT.clone(), CURVE.clone()
    text[3, 1, 2] = curve[3] = bad
    for task, predictions in (("next-token", text), ("regression", curve)):
        meter = Meter(task, clients=True)
        meter.add(predictions, DATA[task][1], OWNERS)
        figures = meter.result()
        accuracy = figures.pop("accuracy", None)
        assert figures.pop("r2", -math.inf) == -math.inf
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
        ("multi-label", ODDS, LABELS),
        ("multi-label", ODDS, 2 * MARKS),
    ):
        with pytest.raises(DataError) as error:
            Meter(task).add(predictions, targets)
        assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="there are 2 classes"):
        Meter("classification", classes=2).add(LOGITS, LABELS)


def test_targets_or_declarations_tell_the_task():
    for task, (_, targets) in DATA.items():
        declared = "multi-label" if task == "multi-label" else None
        assert task_of(declared, None, targets) == task_of(task, None, targets) == task
    assert task_of(None, "binary_cross_entropy", MARKS) == "multi-label"
    assert task_of("multi-label", None, MARKS.float()) == "multi-label"
    for task, loss, targets, words in (
        ("multi-label", None, LABELS, "takes targets .*records, labels"),
        ("regression", None, LABELS, "takes decimal numbers"),
        ("classification", None, MARKS, "takes whole numbers .*records"),
        ("regression", "binary_cross_entropy", MARKS, "is for task = multi-label"),
        ("ranking", None, LABELS, "task must be one of"),
    ):
        with one_line_error((DataError, SpecError), words):
            task_of(task, loss, targets)
    with one_line_error(DataError, "labels, but the model gives"):
        check_multi_label("it", MARKS, (4,))
    with one_line_error(DataError, "record 5 has a label that is neither"):
        check_multi_label("it", torch.where(torch.arange(N)[:, None] == 5, 2, MARKS), (3,))


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


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_single_clients_have_the_figures_whose_worst_and_spread_are_shown(task):
    meter = Meter(task, None, clients=True)
    predictions, targets = DATA[task]
    meter.add(predictions, targets, OWNERS)
    each, shown = meter.clients(), meter.result()
    values = [value for value, _ in each.values()]
    assert sorted(each) == sorted(set(OWNERS.tolist()) - {-1}) and meter.compared() in shown
    worst = min(values) if task == "classification" else max(values)
    assert worst == shown["worst_client"] and sum(n for _, n in each.values()) == int((OWNERS >= 0).sum())
