"""What may be measured on private held-out records: how far one record moves it, what is charged, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from sklearn import metrics as sk

import sordino
from sordino.core.errors import SpecError
from sordino.measures import held_out, settings
from sordino.measures.figure import Figure
from sordino.measures.measure import Measure, chosen
from sordino.privacy.algebra import gdp_mu_squared
from sordino.privacy.derive import once
from sordino.privacy.events import Composed, Cost, GaussianEvent
from sordino.runs import build, loop, own_code
from sordino.spec.spec import from_dict
from sordino.tasks.own_metric import OwnMetric
from support.errors import one_line_error
from support.problems import CLASSES, federation, job, mlp
from support.problems import held_out as public_records

G = torch.Generator().manual_seed(0)
N = 400
LOGITS, LABELS = 2 * torch.randn(N, CLASSES, generator=G), torch.randint(CLASSES, (N,), generator=G)
KEYS = {"validation": 0.4, "evaluate_on": "validation", "evaluate_every": 3, "release_noise": 20.0, "seed": 0}


def second_best(predictions, targets):
    """A metric of one's own: 1 where the true class is among the best two."""
    return (predictions.topk(2).indices == targets[:, None]).any(1).float()


def own(function=second_best):
    return Measure("second_best", own=OwnMetric("second_best", function), classes=CLASSES)


MEASURES = [Measure(name, classes=CLASSES) for name in ("accuracy", "brier", "balanced_accuracy", "confusion")]


@pytest.mark.parametrize("measure", [*MEASURES, own()], ids=lambda m: m.name)
def test_a_record_has_a_row_within_the_bound_and_replacing_it_moves_what_is_charged(measure):
    wild = LOGITS.clone()
    wild[::5] = torch.tensor([float("nan"), 1e30, -1e30])
    rows = measure.rows(wild, LABELS)
    assert rows.shape == (N, measure.cells) and rows.min() >= 0
    assert 0.99 < float(rows.norm(dim=1).max()) <= 1 + 1e-12
    far = torch.cdist(rows[:80], rows[:80]).max()
    assert far <= measure.swing + 1e-9 and (measure.cells == 1 or far > 1.4)
    assert torch.equal(measure.rows(wild[7:8], LABELS[7:8])[0], rows[7])  # of one record alone


def test_without_noise_figures_are_those_of_scikit_learn():
    guess, p = LOGITS.argmax(1), LOGITS.double().softmax(1)
    found = {m.name: m.figures(m.rows(LOGITS, LABELS).sum(0), N) for m in MEASURES}
    balanced, right = sk.balanced_accuracy_score(LABELS, guess), sk.accuracy_score(LABELS, guess)
    assert found["accuracy"] == {"accuracy": pytest.approx(right)}
    brier = ((p - torch.eye(CLASSES)[LABELS]) ** 2).sum(1).mean() / 2
    assert found["brier"] == {"metrics": {"brier": pytest.approx(float(brier))}}
    assert found["balanced_accuracy"]["metrics"] == {"balanced_accuracy": pytest.approx(balanced)}
    assert found["confusion"]["confusion"] == sk.confusion_matrix(LABELS, guess).tolist()
    assert found["confusion"]["metrics"]["macro_f1"] == pytest.approx(sk.f1_score(LABELS, guess, average="macro"))
    assert found["confusion"]["accuracy"] == pytest.approx(right)
    noise = MEASURES[3].figures(torch.full((9,), -5.0), N)
    assert noise["confusion"] == [[0.0] * 3] * 3 and noise["accuracy"] == 0.0  # noise alone is no error


@pytest.mark.parametrize(("name", "swing"), [("brier", 1), ("balanced_accuracy", 2), ("confusion", 2)])
def test_each_is_charged_as_one_release_and_a_replaced_record_as_far_as_it_moves(name, swing):
    made = job(metric=name, **KEYS)
    assert gdp_mu_squared(Composed(made.apart)) == pytest.approx(1 / 20.0**2)
    releases = Figure("record", 20.0, made.evaluation.measure).releases(made.plan)
    assert gdp_mu_squared(once(releases, "replace")) == pytest.approx((swing / 20.0) ** 2)
    wanted = settings.asked(spec := from_dict(KEYS | {"release_noise": None}), made.method, None, False, False)
    wanted = replace(wanted, measure=made.evaluation.measure)
    z = [
        settings.settled(wanted, spec, made.method, Cost("record", how, "server", GaussianEvent(1.0)), (40, 4), 0).noise
        for how in ("add/remove", "replace")
    ]
    assert z[1] == pytest.approx(swing * z[0])  # where the budget sets the noise, it pays for that


def test_a_private_run_shows_noisy_counts_and_says_so(tmp_path):
    keys = KEYS | {"rounds": 2, "epsilon": 8.0, "device": "cpu", "release_noise": 1.0, "evaluate_every": 2}
    result = sordino.train(mlp(), federation(), metric="confusion", out=str(tmp_path), name="a", **keys)
    table = torch.tensor(result.confusion)
    assert table.shape == (3, 3) and (table != table.round()).any()
    assert "in each of 9 counts" in result.history[-1].evaluated_on
    public = json.loads((tmp_path / "a" / "public" / "result.json").read_text())
    assert public["confusion"] == result.confusion == sordino.load(tmp_path / "a", mlp()).confusion
    made = job(metric="confusion", **keys)
    exact = loop.evaluate(replace(made, evaluation=replace(made.evaluation, noise=1e-9)), loop.begin(made).params)
    data = made.federation.parts[held_out.HELD_OUT].data
    guess = loop.trained(made, loop.begin(made).params)(data.x).argmax(1)
    assert exact["confusion"] == sk.confusion_matrix(data.y, guess, labels=range(3)).tolist()


@pytest.mark.parametrize("name", ["auc", "macro_f1", "calibration_error", "worst_class"])
def test_what_is_no_value_of_single_records_is_refused_with_the_reason(name):
    with one_line_error(SpecError, f"metric = {name} on private held-out records is refused: it .*public test records"):
        job(metric=name, **KEYS)
    assert chosen(name, None, "classification", 3, held_out=False).name == "accuracy"  # on public ones all are shown


def test_names_of_other_tasks_are_refused():
    for name, task in (("rmse", "classification"), ("auc", "regression"), ("hits", "classification")):
        with one_line_error(SpecError, f"metric = {name} is none of {task}"):
            chosen(name, None, task, 2, False)
    with one_line_error(SpecError, "given twice"):
        chosen("accuracy", OwnMetric.of(second_best), "classification", 3, False)


# --- a metric of one's own


def test_an_own_metric_of_public_records_sees_all_of_them_at_once(tmp_path):
    x, y = public_records()

    def spread(predictions, targets):
        return predictions.std() * len(targets)

    keys = {"rounds": 1, "epsilon": 8.0, "device": "cpu", "seed": 0, "out": str(tmp_path)}
    result = sordino.train(mlp(), federation(), test=(x, y), metric=spread, **keys)
    with torch.no_grad():
        expected = float(result.model(x).std()) * len(y)
    assert result.metrics["spread"] == pytest.approx(expected, rel=1e-6) and "auc" in result.metrics
    per_record = sordino.train(mlp(), federation(), test=(x, y), metric=second_best, **keys)
    assert per_record.accuracy <= per_record.metrics["second_best"] <= 1


def test_an_own_metric_of_private_records_is_given_one_at_a_time_and_clamped():
    sizes, seen = [], []

    def greedy(predictions, targets):
        sizes.append(len(targets))
        seen.append(1)
        return 1000.0 * len(seen)  # keeps what it has seen, and returns more than it may

    rows = own(greedy).rows(LOGITS[:20], LABELS[:20])
    assert set(sizes) <= {1} and torch.equal(rows, torch.ones(20, 1))
    counted = []

    def counting(predictions, targets):
        counted.append(1)
        return len(counted) / 100

    rows = own(counting).rows(LOGITS[:20], LABELS[:20])
    assert len(set(rows[:, 0].tolist())) == 1  # nothing of one record is left when the next is measured
    lost = own(lambda p, t: float("nan")).rows(LOGITS[:3], LABELS[:3])
    assert torch.equal(lost, torch.zeros(3, 1))


def test_an_own_metric_is_charged_as_accuracy_is(tmp_path):
    mine, _ = own_code.of(None, second_best, None)
    plain = job(**KEYS)
    keys = {"mode": "research", "rounds": 3, "learning_rate": 0.1, "device": "cpu"} | KEYS
    made = build.build(from_dict(keys), mlp(), federation(), own=mine)
    assert made.apart == plain.apart and made.promise == plain.promise
    figures = loop.evaluate(replace(made, evaluation=replace(made.evaluation, noise=1e-9)), loop.begin(made).params)
    data = made.federation.parts[held_out.HELD_OUT].data
    exact = second_best(loop.trained(made, loop.begin(made).params)(data.x), data.y).mean()
    assert figures["metrics"]["second_best"] == pytest.approx(float(exact), abs=1e-6) and "accuracy" not in figures


@pytest.mark.parametrize(
    ("metric", "keys", "words"),
    [
        (lambda p, t: p, {"test": public_records()}, "must return one number, or one per record"),
        (lambda p, t: p, KEYS, "must return one number for one record"),
        (lambda p: p, {"test": public_records()}, "failed: TypeError in your function"),
        (second_best, {}, "no records to measure it on"),
    ],
    ids=["rows", "held-out", "signature", "nothing"],
)
def test_an_own_metric_that_does_not_fit_is_refused_before_anything_is_charged(metric, keys, words, tmp_path):
    with one_line_error(SpecError, words):
        sordino.train(mlp(), federation(), metric=metric, out=str(tmp_path), rounds=3, device="cpu", **keys)
    assert not list(tmp_path.iterdir())


def test_an_own_metric_has_a_name_of_its_own():
    def accuracy(predictions, targets):
        return 1.0

    with one_line_error(SpecError, "Rename it"):
        OwnMetric.of(accuracy)
    assert OwnMetric.of(lambda p, t: 1.0).name == "own_metric"
