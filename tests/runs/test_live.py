"""The live bar of `sordino.train`: in notebooks, or if it is asked for, and nowhere else."""

from __future__ import annotations

import pytest

import sordino
from sordino.runs import live
from support.problems import federation, held_out, linear

KEYS = {"method": "dp-sgd", "epsilon": 4.0, "rounds": 2, "seed": 0}


def train(tmp_path, **keys):
    return sordino.train(linear(), federation((12,) * 4), test=held_out(50), out=str(tmp_path), **KEYS | keys)


@pytest.mark.parametrize("shell", [None, object()])  # no IPython; IPython in a terminal, which has no kernel
def test_a_script_shows_nothing_unless_asked(tmp_path, monkeypatch, capfd, shell):
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    train(tmp_path, name="a")
    assert capfd.readouterr() == ("", "")
    train(tmp_path, name="b", progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "round 2 of 2, accuracy" in err and "epsilon 4 of 4" in err


def test_a_notebook_shows_public_figures_and_no_times(tmp_path, monkeypatch):
    shown, heard = [], []
    monkeypatch.setattr(live, "in_notebook", lambda: True)
    monkeypatch.setattr(live.NotebookBar, "show", lambda self, *state: shown.append(state))
    result = train(tmp_path, name="a", watch=heard.append)
    assert heard == result.history
    assert [state[:2] for state in shown] == [(0, 2), (1, 2), (2, 2)]
    assert shown[-1][2] == f"round 2 of 2, accuracy {100 * result.accuracy:.2f} %, epsilon 4 of 4"
    shown.clear()
    train(tmp_path, name="b", progress=False)
    assert not shown


def test_a_claim_is_not_shown_as_a_budget(tmp_path, capfd):
    train(tmp_path, method="geodp-paper", progress=True)
    assert "epsilon 4 claimed" in capfd.readouterr().err
