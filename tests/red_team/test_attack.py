"""Attacks on whole runs: figures, words, bounds, and files that stay in the private part."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from sordino.attacks.base import MEMBERSHIP, MODELS, require
from sordino.core.errors import SpecError
from sordino.red_team import measure, words
from sordino.red_team.attack import attack, made
from sordino.red_team.words import AttackFigure
from sordino.runs import shadows
from support.problems import registry


@dataclass(frozen=True)
class Oracle:
    """Knows the members, with a share of the answers drawn at random."""

    path: str = ""
    wrong: float = 0.0

    name: ClassVar[str] = "oracle"
    kind: ClassVar[str] = MEMBERSHIP
    sees: ClassVar[tuple[str, ...]] = ("public", "server")
    reads: ClassVar[str] = MODELS
    needs: ClassVar[tuple[str, ...]] = ()

    def score(self, views, knowledge, targets):
        require(self, views, knowledge)
        rng = np.random.default_rng(knowledge.seed)
        inside = {tuple(x) for x in np.load(self.path)["x_train"].tolist()}
        sure = np.array([tuple(x) in inside for x in targets.batch.x.tolist()], dtype=float)
        guess = rng.random(len(sure))
        return np.where(rng.random(len(sure)) < self.wrong, guess, sure + 0.1 * guess)


def files(folder):
    return {p.relative_to(folder): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_an_attack_is_compared_with_the_run_without_privacy_and_leaves_the_public_part_alone(finished):
    folder = finished(seed=5)
    before, paid, said = files(folder / "public"), registry().read_bytes(), []
    report = attack(folder, "gradient_alignment", records=60, step=lambda *news: said.append(news))
    (outcome,) = report.outcomes
    names = [f.metric for f in outcome.figures]
    assert names == ["AUC", "balanced accuracy"] and [f.metric for f in outcome.twin] == names
    assert outcome.twin[0].value > 0.6 and all(f.low <= f.value <= f.high for f in outcome.figures + outcome.twin)
    assert files(folder / "public") == before and registry().read_bytes() == paid
    private = folder / "private" / "attacks"
    assert sorted(p.name for p in private.iterdir()) == [
        f"gradient-alignment-server.{e}" for e in ("json", "npz", "png")
    ]
    assert stat.S_IMODE(private.parent.stat().st_mode) == 0o700
    stored = json.loads((private / "gradient-alignment-server.json").read_text())
    false, true = stored["roc"]["this run"]
    assert false[0] == 0.0 and false[-1] == true[-1] == 1.0 and len(false) == len(true) <= 100
    assert false == sorted(false) and true == sorted(true)
    assert stored["figures"][0]["value"] == outcome.figures[0].value and stored["options"] == {"field": "update"}
    arrays = np.load(private / "gradient-alignment-server.npz")
    assert arrays["scores"].shape == arrays["without_privacy_members"].shape == (120,)
    assert measure._membership_figures(measure.Roc.of(arrays["scores"], arrays["members"])) == outcome.figures
    assert ("training without privacy", 2, 2) in said


def test_a_violated_bound_is_said_and_an_honest_run_is_not_blamed(finished, table):
    folder = finished(epsilon=0.5)
    good = attack(folder, [Oracle(str(table), wrong=1.0)], records=90, baseline=False)
    assert not good.violated and "lets an outsider find at most 1.8 % of members" in good.sentences[-1]
    bad = attack(folder, [Oracle(str(table))], records=90, baseline=False)
    (warning,) = bad.to_json()["warnings"]
    assert bad.violated and "finds 100.0 % of members at 0.0 % false alarms, where epsilon = 0.5 allows" in warning
    weak = attack(finished(), [Oracle(str(table))], records=90, baseline=False)  # epsilon = 8 allows it
    assert not weak.violated and "does not exclude that an outsider finds all members" in weak.sentences[-1]


def test_rows_behind_a_secure_sum_are_refused_with_the_view_that_would_do(finished):
    folder = finished(channel="secure-sum")
    with pytest.raises(SpecError, match=r"saw a sum alone.*channel = direct would see them"):
        attack(folder, "gradient-alignment")
    with pytest.raises(SpecError, match=r"not those of the public.*Use --view server"):
        attack(folder, "gradient-alignment", view="public")
    assert not (folder / "private" / "attacks").exists()


def test_shadow_models_are_trained_once_and_those_without_privacy_are_not_kept(finished, monkeypatch):
    folder, trained = finished(seed=6), []
    train = shadows._trained
    monkeypatch.setattr(shadows, "_trained", lambda job, *args: trained.append(job.spec.method) or train(job, *args))
    report = attack(folder, "lira,rmia", shadows=4)
    assert trained == ["dp-sgd", "none"] and len(report.outcomes) == 2  # both attacks share them
    assert len(list((folder / "private" / "attacks" / "shadows").iterdir())) == 1
    attack(folder, "lira", shadows=4, baseline=False)
    assert len(trained) == 2 and not (folder / "private" / "attacks" / "without_privacy").exists()
    attack(folder, "white-box-gradient", shadows=4, baseline=False)  # does not need them, and gets them
    assert len(trained) == 2


def test_records_are_compared_with_those_of_the_client(finished):
    report = attack(finished(), [replace(made("inverting-gradients")[0], iterations=30)], victims=2, baseline=False)
    (outcome,) = report.outcomes
    named = {f.metric: f for f in outcome.figures}
    assert list(named) == ["MSE", "MAE", "PSNR", "records identified", "labels read"]  # no pictures, so no SSIM
    stored = np.load(outcome.files[1])
    assert stored["made"].shape == stored["true"].shape == (24, 20)
    assert named["MSE"].value == pytest.approx(np.square(stored["made"] - stored["true"]).mean(), rel=1e-4)
    assert 0.5 < named["labels read"].value <= 1 and 0.3 < named["labels read"].chance < 1


def test_a_model_is_asked_for_every_class(finished):
    report = attack(finished(method="none"), "model-inversion")
    (outcome,) = report.outcomes
    assert outcome.view == "public" and np.load(outcome.files[1])["true"].shape == (3, 20)
    assert "of classes are recognised (guessing: 33.3 %)" in outcome.sentence and not report.private


def test_an_active_server_reads_records_of_a_run_without_privacy(finished):
    folder = finished(model="mlp", method="none", clients=48)  # two records each
    (outcome,) = attack(folder, "imprint", active=True, victims=8).outcomes
    stored = np.load(outcome.files[1])
    close = np.abs(stored["made"] - stored["true"]).max(axis=1) < 0.05
    assert close.mean() > 0.5 and "labels read" not in {f.metric for f in outcome.figures}
    with pytest.raises(SpecError, match="the model that was sent has none"):
        attack(folder, "imprint")
    with pytest.raises(SpecError, match="--active is for the view of the server"):
        attack(folder, "model-inversion", view="public", active=True)


def test_the_make_up_of_clients_is_compared_with_that_of_everyone(finished):
    folder = finished(method="none", partition="shards:1", public_data=True)
    (outcome,) = attack(folder, "property-inference").outcomes
    right, error = outcome.figures
    assert right.value > 0.8 > right.chance and error.value < error.chance
    assert "guesses the largest class of a client rightly" in outcome.sentence


def test_an_attribute_is_a_column_of_a_table(finished, tmp_path):
    with pytest.raises(SpecError, match="a column of a table with a schema"):
        attack(finished(), "attribute-from-model")
    rng = np.random.default_rng(0)
    smoker = rng.integers(0, 2, 200)
    lines = [f"{rng.integers(20, 80)},{['no', 'yes'][s]},{int(s ^ (rng.random() < 0.1))}" for s in smoker]
    (tmp_path / "it.csv").write_text("age,smoker,ill\n" + "\n".join(lines) + "\n")
    text = '[age]\nmin = 20\nmax = 80\n[smoker]\nvalues = ["no", "yes"]\n[ill]\nvalues = ["0", "1"]\n'
    (tmp_path / "it.toml").write_text(text)
    keys = {"dataset": str(tmp_path / "it.csv"), "schema": str(tmp_path / "it.toml"), "label_column": "ill"}
    folder = finished(**keys, method="none", validation=0.3, rounds=20)
    with pytest.raises(SpecError, match="--attribute COLUMN, one of age, smoker"):
        attack(folder, "attribute-from-model")
    (outcome,) = attack(folder, "attribute-from-model", attribute="smoker").outcomes
    inside, outside = outcome.figures
    assert inside.value > 0.75 and abs(inside.value - outside.value) < 0.25 and inside.chance > 0.75
    assert outcome.sentence.startswith("An outsider guesses smoker of members rightly in ")


def test_names_and_options_that_do_not_exist_give_the_nearest():
    with pytest.raises(SpecError, match="Did you mean 'gradient-alignment'"):
        made("gradient-alinement")
    with pytest.raises(SpecError, match="is not an attack"):
        made([torch.nn.Linear(1, 1)])


# --- words


def test_sentences():
    at = AttackFigure(words.rate_name(0.01), 0.0112, 0.0091, 0.0138, 0.01)
    plain = AttackFigure(words.rate_name(0.01), 0.126, 0.12, 0.132, 0.01)
    assert words.found("public", [at], []) == (
        "At 1 % false alarms an outsider finds 1.1 % of members (0.9 to 1.4 %); guessing finds 1.0 %."
    )
    assert words.found("server+2", [at], [plain]).endswith(
        "finds 1.1 % of members (0.9 to 1.4 %); guessing finds 1.0 %; without privacy: 12.6 % (12.0 to 13.2 %)."
    )
    few = AttackFigure(words.BALANCED, 0.6, 0.5, 0.7, 0.5)
    assert words.found("wire:3", [few], []) == (
        "An eavesdropper on one link tells members from other records in 60.0 % (50.0 to 70.0 %) of cases; "
        "guessing: 50.0 %."
    )


@pytest.mark.parametrize(
    ("viewer", "text"),
    [
        ("public", "an outsider"),
        ("client", "a curious participant"),
        ("wire:12", "an eavesdropper on one link"),
        ("server", "the server"),
        ("server+1", "the server with one colluding client"),
        ("server+2", "the server with two colluding clients"),
        ("server+40", "the server with 40 colluding clients"),
    ],
)
def test_viewers_in_words(viewer, text):
    assert words.who(viewer) == text


def test_rates_that_so_few_records_cannot_show_are_left_out():
    rng = np.random.default_rng(0)
    members = np.arange(2000) % 2 == 0
    scores = rng.normal(size=2000) + members
    shown = [f.metric for f in measure._membership_figures(measure.Roc.of(scores, members))]
    assert shown == ["AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "balanced accuracy"]
    fewer = measure._membership_figures(measure.Roc.of(scores[:600], members[:600]))
    assert [f.metric for f in fewer] == ["AUC", "TPR at 1 % FPR", "balanced accuracy"]
    assert fewer[-1].low < 0.69 < fewer[-1].high  # Phi(1/2) is the best that can be done


def test_scores_bound_epsilon_from_below():
    draw = np.random.default_rng(3)
    members = np.arange(4000) % 2 == 0
    clear = draw.normal(size=4000) + 2.0 * members  # two deviations apart: epsilon(1e-5) is 9.9
    shown = measure.epsilon_figure(clear, members, 1e-5)
    assert shown.metric == "epsilon at least" and 1.5 < shown.value < 9.9
    assert measure.epsilon_figure(draw.normal(size=4000), members, 1e-5).value < 0.3
