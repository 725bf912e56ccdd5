"""What is made of an experiment's runs: tables, pages, pictures and the numbers behind them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sordino.cli.reproduce import _write
from sordino.core.errors import RunError
from sordino.papers import curves, feng_times, page, pictures, settings
from sordino.papers import run as running
from sordino.papers.base import VERDICTS, Experiment, Outcome, Trial


def outcome(row, x, form, seed, accuracy, epsilon=None, claim=None):
    promised = {"epsilon": epsilon, "unit": "record", "viewer": "server", "reason": None}
    result = {"accuracy": accuracy, "guarantee": promised, "claim": claim, "rounds": 2, "metrics": {}}
    records = [{"round": r, "accuracy": accuracy, "seconds": 1.0, "bytes_up": 5, "noise": 0.1} for r in (1, 2)]
    return Outcome(Trial(row, x, form, seed, {"method": "dp-sgd"}), result, records)


def test_the_table_has_paper_printed_sound_and_honest_side_by_side():
    found = [outcome("A", 0.5, "printed", s, 0.9 + 0.02 * s) for s in (0, 1)]
    found += [outcome("A", 0.5, "sound", 0, 0.8, 0.49996)]
    found += [outcome("A", 2.0, "sound", 0, 0.85, 2.0), outcome("A", "none", "reference", 0, 0.99)]
    paper = {("A", 0.5): 93.7, ("A", "none"): 97.0}
    lines = page.table(Experiment("002/x", "T", "", lambda s: [], paper), found)
    assert lines == [
        "Mean ± standard deviation over seeds.",
        "",
        "|  |  | honest epsilon | epsilon 0.5 | epsilon 2 | without privacy |",
        "| --- | --- | --- | --- | --- | --- |",
        "| A | in the paper |  | 93.7 |  | 97 |",
        "| A | ours, as printed | infinite | 91.00 ± 1.41 (2 seeds) |  | 99.00 (one seed) |",
        "| A | ours, sound | 0.5, 2 | 80.00 (one seed) | 85.00 (one seed) |  |",
    ]


def test_where_all_numbers_have_as_many_seeds_it_is_said_once():
    made = Experiment("002/x", "T", "", lambda s: [])
    two = [outcome("A", "mnist", "printed", s, 0.9 + 0.02 * s) for s in (0, 1)]
    assert page.table(made, two)[0] == "Mean ± standard deviation over 2 seeds."
    assert page.table(made, two)[-1] == "| A | ours, as printed | infinite | 91.00 ± 1.41 |"
    assert page.table(made, two[:1])[0] == "One seed." and page.table(made, []) == []


def test_runs_that_another_figure_shows_are_not_shown_twice():
    made = Experiment("002/x", "T", "", lambda s: [], within="002/y")
    text = page.section(made, [outcome("A", 0.5, "printed", 0, 0.9)], page.Provenance("c"), None)
    assert "These are runs of 002/y, where their scores stand." in text and "90.00" not in text


def test_a_verdict_is_of_the_whole_experiment_alone():
    made = Experiment("002/x", "T", "", lambda s: [], verdict="Opposite: B is ahead.")
    found = [outcome("A", 0.5, "printed", 0, 0.9)]
    assert "\n**Opposite:** B is ahead.\n" in page.section(made, found, page.Provenance("c", wanted=1), None)
    for how in (page.Provenance("c", 0.5), page.Provenance("c", changed=["rounds=2"]), page.Provenance("c", wanted=2)):
        assert "Opposite" not in page.section(made, found, how, None)
    for experiment in running.EXPERIMENTS.values():
        assert not experiment.verdict or experiment.verdict.partition(":")[0].rstrip(".") in VERDICTS


def test_settings_are_said_once_for_all_runs_that_share_them():
    def run(row, x, form, **keys):
        return replace(outcome(row, x, form, 0, 0.9), trial=Trial(row, x, form, 0, keys))

    same = {"dataset": "mnist", "clients": 50, "epsilon": 0.5, "device": "cpu"}
    printed = same | {"method": "nbafl-paper", "clip": 20.0}
    sound = same | {"method": "dp-sgd", "clip": 2.0}
    found = [run("A", x, "printed", **printed, learning_rate=rate) for x, rate in ((0.5, 0.1), (2.0, 0.4))]
    found += [run("A", 0.5, "sound", **sound, optimizer="adam"), run("B", 0.5, "sound", **sound, rounds=7)]
    said = settings.lines(found)
    assert said[0].startswith("Settings of all runs: dataset mnist") and "clients 50" in said[0] and said[1] == ""
    assert (
        "learning rate (0.1 at 0.5; 0.4 at 2)" in said[2]
        and "method nbafl-paper" in said[2]
        and "scope total" in said[2]
    )
    assert said[3].startswith("- Sound: method dp-sgd") and "clip 2" in said[3]
    assert "*A*: rounds 50, optimizer adam" in said[3] and "*B*: rounds 7, optimizer sgd" in said[3]
    assert "cpu" not in "".join(said) and "epsilon" not in "".join(said) and settings.lines([]) == []
    varied = [run("A", float(n), "sound", **(sound | {"clients": n})) for n in (50, 100)]
    assert "clients" not in "".join(settings.lines(varied))  # the table shows them


def test_a_page_says_what_diverged_and_a_curve_is_of_numbers_alone():
    fine, lost = outcome("A", 0.5, "printed", 0, 0.9), outcome("B", 0.5, "printed", 0, 0.0)
    for one, loss in ((fine, 0.3), (lost, None)):
        one.records[-1].update(
            evaluated_on="public test data", loss=loss, decided={"accuracy": {"all": 0.2}, "std": 2.0}
        )
        one.records[0].update(accuracy=None, decided={"accuracy": {"all": 0.2}})
        assert one.curve("accuracy")[0] == [2] and one.curve("std") == ([2], [2.0])
    text = page.section(Experiment("002/x", "T", "", lambda s: []), [fine, lost], page.Provenance("c"), None)
    assert "no finite number at the end: B at 0.5.\n" in text and "| B | ours, as printed | infinite | 0.00 |" in text


def test_curves_without_privacy_are_in_every_panel():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    private = [outcome("A", x, "sound", 0, 0.8, x) for x in (0.5, 2.0)]
    plain = outcome("FedAvg", "none", "reference", 0, 0.9)
    made = Experiment("002/x", "T", "", lambda s: [], kind="by-round")
    for found, panels in ((private, 2), ([*private, plain], 2), ([plain], 1)):
        figure = pictures._by_round(pyplot, made, found)
        seen = [axis for axis in figure.axes if axis.get_visible()]
        assert len(seen) == panels
        for axis in seen:
            heights = sorted(line.get_ydata()[0] for line in axis.lines)
            assert heights == ([80.0] if private[0] in found else []) + ([90.0] if plain in found else [])
        pyplot.close(figure)


def test_a_page_keeps_what_others_wrote(tmp_path):
    one, two = (Experiment(f"002/{n}", n, "", lambda s: []) for n in ("a", "b"))
    file = tmp_path / "002.md"
    page.put(file, one, "first", "Heading")
    page.put(file, two, "second", "Heading")
    file.write_text(file.read_text().replace("# Heading", "# Heading\n\nBy hand."))
    page.put(file, one, "changed \\1", "Heading")
    text = file.read_text()
    assert text.count("# Heading") == 1 and "By hand." in text and "second" in text
    assert "first" not in text and "changed \\1" in text
    file.write_text(text.replace("<!-- end 002/a -->", ""))
    with pytest.raises(RunError, match="damaged"):
        page.put(file, one, "again", "Heading")


@pytest.mark.parametrize(
    ("old", "says", "rows", "finished", "new", "kept"),
    [
        ("", "So far 3 of 7 runs.", 3, 2, "", "3 finished runs"),
        ("", "So far 3 of 7 runs.", 3, 3, "", ""),
        ("", "", 7, 6, "", "7 finished runs"),
        ("", "", 5, 6, "", ""),  # it took five then
        ("", "", 9, 7, "", ""),  # it took nine then, and takes seven now
        ("", "", None, 6, "", "7 finished runs"),
        ("", "So far 0 of 7 runs.", None, 0, "", ""),
        (" --scale 0.1", "", 5, 0, "", "5 finished runs"),
        (" --scale 0.1", "", 5, 1, "", ""),
        (" --scale 0.1", "", 5, 1, " --scale 0.2", ""),
        ("", "", 5, 7, " --scale 0.1", "5 runs at full scale"),
    ],
)
def test_what_a_page_keeps(tmp_path, old, says, rows, finished, new, kept):
    """Flags of the old command, what the page says, the rows beside it; runs of seven that are finished, flags."""
    experiment, other = (Experiment(f"002/{n}", "T", "", lambda s: []) for n in ("x", "other"))
    path, _, numbers, _ = page.files(tmp_path, experiment)
    page.put(path, experiment, f"## T\n\n    sordino reproduce 002/x{old}\n\n{says}\n", "Heading")
    if rows is not None:
        numbers.parent.mkdir()
        numbers.write_text("row\n" + "1\n" * rows)
    assert (
        page.better_results(tmp_path, experiment, finished, page.Provenance(f"sordino reproduce 002/x{new}", wanted=7))
        == kept
    )
    assert page.better_results(tmp_path, other, 0, page.Provenance("sordino reproduce 002/other", wanted=7)) == ""


def test_a_page_says_what_was_changed_what_failed_and_what_is_missing():
    experiment = running.find("002/fig4d")
    how = page.Provenance("sordino reproduce", 0.5, ("rounds=3",), {"GeoDP-0.3": "RunError: no"}, wanted=108)
    text = page.section(experiment, [], how, None)
    assert "Changed by hand: rounds=3, so nothing here compares" in text and "scale 0.5" in text
    assert "Failed: GeoDP-0.3: RunError: no" in text and "So far 0 of 108 runs." in text
    assert "Changed" not in page.section(experiment, [], page.Provenance("sordino reproduce"), None)


def test_contribution_rates_are_on_the_page_in_numbers():
    experiment = running.find("004/fig1")
    rates = [{"0": 0.2, "1": 0.0, "2": 0.5}, {"0": 0.4}]
    told = [{"ratio": sum(r.values()) / len(r), "clients": {c: {"ratio": v} for c, v in r.items()}} for r in rates]
    records = [{"round": n + 1, "decided": d} for n, d in enumerate(told)]
    result = outcome("A", 1.0, "printed", 0, 0.9).result
    text = page.section(
        experiment, [Outcome(experiment.trials(1.0)[0], result, records)], page.Provenance("c", wanted=1), None
    )
    assert "| round 100 |" in text and "| accuracy without noise | ours, as printed | infinite | 90.00 |" in text
    assert "| mean of a round's clients | 2 | 0.317 | 0.233 | 0.400 |" in text
    assert "| client 0 | 2 | 0.300 | 0.200 | 0.400 |" in text and "| client 2 | 1 | 0.500 |" in text
    assert "client 1" not in text  # which has no private records
    assert experiment.extra([]) == []


@pytest.mark.parametrize(
    "own", [{}, {"learning_rate": 0.05, "clients": 40, "client_rate": 0.5, "local_epochs": 3.0, "gradient_clip": 5.0}]
)
def test_the_bound_of_theorem_2_is_that_of_the_run(own):
    """Eq. (7) once more, its sum over l written out."""
    experiment = running.find("004/theorem2")
    trial = running.cells(experiment, 1.0, own)[0][0]
    eta, n, phi, epochs, g = own.values() if own else (0.1, 100, 0.1, 2.0, 20.0)
    k, dim, std, smooth = int(n * phi), 50, 0.3, 0.24 / eta
    records = [{"round": t, "clients": k, "bytes_down": 4 * dim * k, "decided": {"std": std}} for t in (1, 2)]
    found = experiment.bounds(Outcome(trial, {}, records))
    for t in (1, 2):
        v, w = 2 * smooth * eta**2 * epochs**2 * g**2, 6 * smooth * g**2 + 8 * (epochs - 1) ** 2 * g**2
        quiet = smooth * (1 - eta) ** t / 2 * 10**2 + (1 - phi) * v + eta * w
        noise = sum(i * smooth * dim * std**2 for i in range(1, k + 1))
        assert found["Theorem 2 without noise"][t - 1] == pytest.approx(quiet)
        assert found["Theorem 2"][t - 1] == pytest.approx(quiet + noise)


def test_rounds_to_ninety_percent_stand_beside_the_papers_words():
    found = [outcome("UDP-FL, staircase", "mnist", form, 0, a) for form, a in (("printed", 0.9), ("sound", 0.89))]
    found[0].records[0]["accuracy"] = 0.5
    found += [outcome("NbAFL", "medical-mnist", "printed", s, 0.95) for s in (0, 1)]
    lines = running.find("003/fig1").extra(found)
    assert '| UDP-FL, staircase | mnist | printed | 2 | "90% accuracy in about 25 epochs" |' in lines
    assert "| UDP-FL, staircase | mnist | sound | not within 2 |  |" in lines
    assert '| NbAFL | medical-mnist | printed | 1, 1 | "fail to converge even after 100 epochs" |' in lines
    apart = running.find("003/fig1c").extra(found)
    assert '| NbAFL | medical-mnist | printed | 1, 1 | "did not converge even with 100 epochs" |' in apart


def test_what_clients_chose_by_the_printed_harmonizer_stands_on_the_page():
    choice = {"data": ["dense", "high-dimensional"], "sparsity": 0.125, "kurtosis": 4.5, "sensitivity": 2.25}
    found = [outcome("UDP-FL, printed Harmonizer", "mnist", "printed", 0, 0.9)]
    found[0].records[-1]["decided"] = {
        "mechanisms": {"gaussian": 2, "laplace": 0, "staircase": 1},
        "clients": {"10": choice | {"data": []}, "2": choice},
    }
    lines = running.find("003/fig1").extra(found)
    assert "| mnist | 0 | gaussian 2, staircase 1 | dense and high-dimensional | 12 % | 4.5 | 2.25 |" in lines
    coded = running.find("003/fig1").extra([outcome("UDP-FL, staircase, authors' code", "mnist", "printed", 0, 0.9)])
    assert any('authors\' code | mnist | printed | 1 | "90% accuracy in about 25 epochs"' in line for line in coded)


def test_no_run_from_a_checkpoint_of_the_same_records_says_that_it_is_sound():
    trials = running.find("003/table3-checkpoint").trials(1.0)
    assert {t.keys["initial_weights_from"] for t in trials} == {"own"}
    assert {t.form for t in trials} == {"printed", "reference"}


def test_errors_of_wind_are_means_over_seeds():
    found = [outcome("A", x, "printed", s, None) for x in (1.0, "at any") for s in (0, 1)]
    for o, error in zip(found, (0.1, 0.2, 0.3, 0.4), strict=True):
        o.result["metrics"]["mae"] = error
    lines = running.find("003/fig5").extra(found)
    assert "| | form | epsilon 1 | at any |" in lines and "| A | printed | 0.1500 | 0.3500 |" in lines


def test_best_and_final_five_stand_beside_the_papers():
    found = [outcome("FedSDP", 0.2, "printed", 0, 0.4), outcome("FedAvg", "none", "reference", 0, 0.75)]
    found[0].records[0]["accuracy"] = 0.5
    lines = running.find("004/table1").extra(found)
    assert "| FedSDP | 0.2 | 74.79 | 50.00 | 73.26 | 45.00 |" in lines
    assert "| FedAvg | none | 84.34 | 75.00 | 84.22 | 75.00 |" in lines


def test_levels_without_privacy_are_in_the_legend_in_the_colour_of_their_row():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = ("SGD", "Adam")
    found = [outcome(r, 0.5, "printed", 0, 0.5) for r in rows]
    found += [outcome(r, "none", "reference", 0, a) for r, a in zip(rows, (0.6, 0.7), strict=True)]
    figure = pictures._against_x(pyplot, Experiment("002/x", "T", "", lambda s: []), found)
    levels = {line.get_label(): line for line in figure.axes[0].lines if line.get_linestyle() == ":"}
    assert {name: line.get_ydata()[0] for name, line in levels.items()} == pytest.approx(
        {"SGD, no privacy": 60, "Adam, no privacy": 70}
    )
    assert len({line.get_color() for line in levels.values()}) == 2
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= set(levels)
    pyplot.close(figure)


def test_what_a_picture_draws_is_in_a_file():
    one = outcome("A", 0.5, "printed", 0, 0.8)
    for r in one.records:
        r["decided"] = {
            "delta_algorithm_4": 1e-6 * r["round"],
            "path_loss": [3.0, 1.0, 2.0],
            "straight_loss": [3.0] * 3,
        }
        r["decided"] |= {"weights_quantiles": [-2.0, 2.0], "truncated_quantiles": [-1.0, 1.0]}
    sound = outcome("B", 0.5, "sound", 0, 0.7, 0.5)
    made = Experiment("002/x", "T", "", lambda s: [], kind="by-round", beside=("delta_algorithm_4",))
    made = replace(made, bounds=lambda o: {"Theorem 9": [5.0]})
    assert curves.csv(made, [one, sound]).splitlines() == [
        "row,at,form,seed,round,what,value",
        "A,0.5,printed,0,1,accuracy,80.0",
        "A,0.5,printed,0,2,accuracy,80.0",
        "A,0.5,printed,0,1,delta_algorithm_4,1e-06",
        "A,0.5,printed,0,2,delta_algorithm_4,2e-06",
        "A,0.5,printed,0,1,Theorem 9,5.0",
        "B,0.5,sound,0,1,accuracy,70.0",
        "B,0.5,sound,0,2,accuracy,70.0",
        "B,0.5,sound,0,1,Theorem 9,5.0",
    ]
    points = replace(made, kind="points", x="round", points=lambda found: {"mean": [(1, 0.25)]})
    assert curves.csv(points, [one]).splitlines() == ["what,round,value", "mean,1,0.25"]
    assert "A,0.5,printed,0,2,path_loss,0.5,1.0" in curves.csv(replace(made, kind="path"), [one]).splitlines()
    assert "A,0.5,printed,0,1,truncated_quantiles 2,1.0" in curves.csv(replace(made, kind="boxes"), [one]).splitlines()
    assert curves.csv(replace(made, kind="against-x"), [one]) == ""
    one.records[0]["decided"] |= {"weights_quantiles": [None, 2.0], "path_loss": [None, 1.0]}  # of a run that diverged
    del one.records[0]["decided"]["truncated_quantiles"], one.records[0]["decided"]["straight_loss"]  # of an old one
    assert "A,0.5,printed,0,1,weights_quantiles 1," in curves.csv(replace(made, kind="boxes"), [one]).splitlines()
    assert "A,0.5,printed,0,1,path_loss,0.0," in curves.csv(replace(made, kind="path"), [one]).splitlines()


def test_the_file_of_curves_comes_and_goes_with_what_is_drawn(tmp_path):
    made = Experiment("002/x", "T", "", lambda s: [], kind="by-round")
    path, *_, drawn = page.files(tmp_path, made)
    for kind, there in (("by-round", True), ("against-x", False)):
        _write(
            tmp_path, tmp_path, replace(made, kind=kind), [outcome("A", 0.5, "printed", 0, 0.8)], page.Provenance("c")
        )
        assert drawn.exists() == there == ("(002/x-curves.csv)" in path.read_text())


def test_the_search_is_timed_with_nothing_known(monkeypatch):
    asked = []
    monkeypatch.setattr(feng_times.harmonizer, "choose", Counted(feng_times.harmonizer.choose, asked))
    for _ in range(2):
        assert feng_times._search(50) > 0
    assert asked == [0] * 2


class Counted:
    """How much is known when a function is called."""

    def __init__(self, inner, asked):
        self.inner, self.asked = inner, asked

    def __call__(self, *args):
        self.asked.append(sum(known.cache_info().currsize for known in feng_times.CACHES))
        return self.inner(*args)
