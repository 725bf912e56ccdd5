"""Runs that end early, by their owner or by a callback: the model stays, and so does the charge of the whole plan."""

from __future__ import annotations

import json

import pytest

import sordino
from sordino.core.errors import RunError
from sordino.run_folder.export import export
from sordino.run_folder.folder import RunFolder
from sordino.runs import run
from support.killed import dies
from support.problems import charges, federation, held_out, linear, same_weights
from support.tables import trained

KEYS = {"rounds": 6, "epsilon": 3.0, "checkpoint_seconds": 0.0, "device": "cpu", "name": "it"}


def train(out, **keys):
    return sordino.train(linear(), federation(), test=held_out(), **KEYS | {"out": str(out), "seed": 0} | keys)


def finish(folder, **keys):
    return sordino.train(linear(), federation(), test=held_out(), resume=folder, finish=True, **keys)


def test_an_interrupted_run_is_stopped_and_keeps_its_model_and_its_charge(tmp_path):
    assert dies("paid", 3, lambda: train(tmp_path))  # in its fourth round, which is charged
    folder = tmp_path / "it"
    before = charges(folder)
    result = finish(folder)
    assert charges(folder) == before == [0, 1, 2, 3]
    assert [r.round for r in result.history] == [1, 2, 3] and result.accuracy is not None
    plain = train(tmp_path / "whole")
    assert result.guarantee == plain.guarantee and result.guarantee.rounds == 6  # of the plan, not of three rounds
    assert result.guarantee.epsilon > 2.9 > result.history[-1].epsilon["server"]
    assert "stopped after 3 of 6 rounds; the whole plan stays charged" in result.notes[-1]
    assert not same_weights(result.model, plain.model)
    assert same_weights(sordino.load(folder, linear(seed=4)).model, result.model)
    stored = json.loads((folder / "public" / "result.json").read_text())
    assert stored["rounds"] == 3 and stored["guarantee"]["rounds"] == 6
    assert set(export(folder, tmp_path / "handout")) == set(export(plain.folder, tmp_path / "other"))
    with pytest.raises(RunError, match="is finished already"):
        finish(folder)


def test_what_cannot_be_finished_is_refused_and_nothing_changes(tmp_path):
    with pytest.raises(RunError, match="name its folder, by resume"):
        sordino.train(linear(), federation(), finish=True)
    with pytest.raises(RunError, match="there is no run folder"):
        finish(tmp_path / "nowhere")
    assert dies("paid", 0, lambda: train(tmp_path))
    with pytest.raises(RunError, match="no round is on file, so there is no model to keep"):
        finish(tmp_path / "it")
    assert dies("paid", 3, lambda: train(tmp_path / "locked"))
    other = RunFolder(tmp_path / "locked" / "it")
    other.lock()  # a process that still runs it
    with pytest.raises(RunError, match="in use by another process"):
        finish(other.path)
    other.close()
    assert not list(tmp_path.rglob("result.json"))


def test_a_run_whose_last_files_are_missing_ends_as_planned(tmp_path):
    assert dies("finishing", 0, lambda: train(tmp_path, rounds=2))
    result = finish(tmp_path / "it")
    assert len(result.history) == 2 and not any("stopped" in note for note in result.notes)


def test_noise_that_was_lost_with_its_process_does_not_keep_a_run_from_being_finished(tmp_path):
    keys = {"method": "dp-ftrl", "mode": "secure", "seed": None}
    assert dies("paid", 3, lambda: train(tmp_path, **keys))
    with pytest.raises(RunError, match="was lost with the process"):
        sordino.train(linear(), federation(), test=held_out(), resume=tmp_path / "it")
    assert finish(tmp_path / "it").guarantee.rounds == 6


def test_the_command_stops_a_run_of_a_table(tmp_path, monkeypatch, capsys):
    import sys

    from sordino.cli.main import main

    monkeypatch.setattr(run, "rehearse", lambda job: None)
    assert dies("paid", 2, lambda: trained(tmp_path, rounds=5, checkpoint_seconds=0.0))
    folder = tmp_path / "runs" / "it"
    monkeypatch.setattr(sys, "argv", ["sordino", "finish", str(folder)])
    main()
    told = capsys.readouterr().out
    assert "stopped after 2 of 5 rounds" in told and "In total over 5 rounds" in told
    assert "yes" in sordino.load(folder).predict(str(tmp_path / "t.csv"))
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "is finished already" in capsys.readouterr().err


# --- callbacks


def test_a_callback_ends_a_run_after_the_round_that_it_saw(tmp_path):
    seen = []

    def watch(record):
        seen.append(record)
        if record.round == 2:
            raise sordino.callbacks.StopTraining

    result = train(tmp_path, watch=watch, checkpoint_seconds=1e6)
    assert [r.round for r in seen] == [1, 2] == [r.round for r in result.history]
    assert result.guarantee.rounds == 6 and result.guarantee.epsilon > 2.9
    assert "stopped after 2 of 6 rounds" in result.notes[-1] and len(charges(result.folder)) == 2
    whole = train(tmp_path / "two", rounds=2)
    assert not (result.folder / "private" / "error.json").exists()
    assert whole.guarantee.rounds == 2  # a run that is planned for two rounds has less noise
    last = train(tmp_path / "last", watch=lambda r: stop_at(r, 6))
    assert not any("stopped" in note for note in last.notes)


def stop_at(record, number):
    if record.round == number:
        raise sordino.callbacks.StopTraining


def test_several_callbacks_hear_every_round_and_the_end_is_told_once(tmp_path):
    class Told:
        def __init__(self):
            self.rounds, self.ends = [], []

        def __call__(self, record):
            self.rounds.append(record.round)

        def finish(self, result):
            self.ends.append(result)

    told = Told()
    result = train(tmp_path, watch=[lambda r: stop_at(r, 2), told])
    assert told.rounds == [1, 2] and told.ends[0]["guarantee"]["rounds"] == 6 and told.ends[1:] == [None]
    assert len(result.history) == 2
    failed = Told()

    def fails(record):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train(tmp_path / "failed", watch=[failed, fails])
    assert failed.ends == [None]
    with pytest.raises(sordino.SordinoError, match=r"watch\[1\] must be a function of one argument"):
        train(tmp_path / "bad", watch=[told, 3])
