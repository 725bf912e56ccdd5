"""What an attacker is given is what it saw and may know; what is true stays with the owner."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

import sordino
from sordino.core.errors import DataError, RunError, SpecError
from sordino.privacy.guarantee import Guarantee
from sordino.red_team import case
from sordino.red_team.attack import attack
from sordino.run_folder.views import read_views
from support.problems import federation, held_out, linear


def rows(x):
    return {tuple(row) for row in x.reshape(len(x), -1).tolist()}


@pytest.fixture
def job(finished):
    return case.opened(finished())


def test_half_of_the_targets_were_trained_on_and_nothing_else_tells_which(finished, job):
    made = case.of_run(finished(), job, "server", records=40)
    batch, data = made.targets.batch, case.training_data(job)
    trained = rows(data.fetch(range(8), job.device).x)
    assert [tuple(x) in trained for x in batch.x.tolist()] == made.members.tolist()
    assert made.members.sum() == (~made.members).sum() == 40 and len(batch.y) == sum(batch.sizes) == 80
    for client, x, member in zip(made.targets.owners, batch.x, made.members, strict=True):
        assert not member or tuple(x.tolist()) in rows(data.fetch([client], job.device).x)
    others = np.array(made.targets.owners)[~made.members]
    assert set(others) == set(range(8))  # others are ascribed to all clients, too
    assert 30 < np.flatnonzero(made.members).mean() < 50  # not the members first, and not last


def test_auxiliary_records_are_test_records_that_are_no_targets(finished, job):
    made = case.of_run(finished(), job, "public", records=40)
    known, asked = rows(made.knowledge.auxiliary.x), rows(made.targets.batch.x)
    assert len(known) == 80 and not known & asked and known <= rows(job.test[0])
    assert len(case.of_run(finished(), job, "public").members) == 2 * 60  # half of the test records, unless asked
    assert case.of_run(finished(), job, "public", records=1000).knowledge.auxiliary.x.shape[0] == 120 - 96


def test_the_sample_is_fixed_by_its_seed(finished, job):
    one, same, other = (case.of_run(finished(), job, "public", 30, seed) for seed in (0, 0, 1))
    assert torch.equal(one.targets.batch.x, same.targets.batch.x)
    assert not torch.equal(one.targets.batch.x, other.targets.batch.x)


def test_attackers_know_their_own_records_and_do_not_ask_for_them(finished, job):
    data = case.training_data(job)
    client = case.of_run(finished(), job, "client")
    assert torch.equal(client.knowledge.own.x, data.fetch([0], job.device).x)
    assert 0 not in client.targets.clients and client.clients == tuple(range(1, 8))
    folder = finished(viewer="server+2", method="dp-sgd", channel="secure-sum")
    both = case.of_run(folder, case.opened(folder), "server+2")
    assert both.knowledge.own.sizes == (12, 12) and both.clients == tuple(range(6))
    assert case.of_run(finished(), job, "server").knowledge.own is None
    wire = case.of_run(finished(), job, "wire:3")
    assert wire.clients == (3,) and wire.members.sum() == 12 and set(wire.targets.owners) == {3}


def test_clients_that_never_took_part_are_no_members(finished):
    folder = finished(client_rate=0.3, rounds=1, seed=3)
    (view,) = read_views(folder, "server")
    made = case.of_run(folder, case.opened(folder), "public")
    assert 0 < len(view.cohort) < 8 and made.clients == view.cohort


def test_without_views_the_public_still_has_the_model(finished):
    folder = finished(record_views=False)
    job = case.opened(folder)
    (view,) = case.views_of(folder, job, "public")
    (*_, last) = read_views(finished(), "public")  # the same run with views
    assert view.round == 2 and torch.equal(view.state.model, last.state.model)
    with pytest.raises(RunError, match=r"no views of the server\. Run it again with --record-views.*--view public"):
        case.views_of(folder, job, "server")


def test_released_statistics_are_in_the_model(finished):
    folder = finished(standardise=True, feature_bound=5.0)
    job = case.opened(folder)
    shift = next(v for k, v in job.model.module.named_buffers() if k.endswith("shift"))
    assert shift.abs().sum() > 0  # of a job that is merely made again, it is zero
    assert torch.equal(job.model.layout.read(job.model.module), read_views(folder, "server")[0].state.params)


def test_folders_that_cannot_be_attacked_say_why(finished, table, tmp_path):
    with pytest.raises(RunError, match="there is no run folder"):
        case.opened(tmp_path / "none")
    cut = tmp_path / "cut"
    shutil.copytree(finished(), cut)
    (cut / "public" / "result.json").unlink()
    with pytest.raises(RunError, match="is not finished: continue it with `sordino resume"):
        case.opened(cut)
    foreign = tmp_path / "foreign"
    shutil.copytree(finished(), foreign)
    spec = foreign / "private" / "spec.toml"
    spec.write_text(spec.read_text().replace("seed = 0", "seed = 1"))  # other clients get the records
    with pytest.raises(RunError, match=r"trained on other records.*which records are members"):
        case.opened(foreign)
    with pytest.raises(SpecError, match=r"wire:K names the client.*wire:0"):
        case.views_of(finished(), case.opened(finished()), "wire")
    with pytest.raises(RunError, match="client 9 took part in no round"):
        case.views_of(finished(), case.opened(finished()), "wire:9")


def test_a_run_from_python_is_attacked_from_python(tmp_path):
    keys = {"method": "none", "rounds": 2, "seed": 0, "record_views": True, "out": str(tmp_path), "device": "cpu"}
    result = sordino.train(linear(), federation(), test=held_out(), **keys)
    with pytest.raises(RunError, match=r"sordino\.attack\(.*model=model, clients=clients, test=test\)"):
        attack(result, "gradient-alignment")
    with pytest.raises(RunError, match="trained on other records"):
        attack(result, "gradient-alignment", model=linear(), clients=federation(seed=1), test=held_out())
    report = sordino.attack(result, "gradient-alignment", model=linear(), clients=federation(), test=held_out())
    (outcome,) = report.outcomes
    assert outcome.figures[0].value > 0.6 and not outcome.twin and not report.private
    row = report.to_json()["rows"][0]
    assert row["with_dp"] is None and row["without_dp"]["value"] == outcome.figures[0].value


def test_without_other_records_there_is_nothing_to_compare_with(tmp_path):
    keys = {"method": "none", "rounds": 1, "seed": 0, "record_views": True, "out": str(tmp_path), "device": "cpu"}
    result = sordino.train(linear(), federation(), **keys)
    with pytest.raises(DataError, match=r"no record that no client trained on.*test = FILE"):
        attack(result, "gradient-alignment", model=linear(), clients=federation())


def test_a_guarantee_of_clients_counts_twice_for_a_record():
    def promise(unit, relation):
        return Guarantee(1.0, 1e-5, unit, relation, "server", 1, "research")

    assert case.allowed(promise("record", "add/remove")) == (1.0, 1e-5)
    assert case.allowed(promise("client", "replace")) == (1.0, 1e-5)
    assert case.allowed(promise("client", "add/remove")) == (2.0, pytest.approx(1e-5 * (1 + np.e)))
    assert case.allowed(promise("label", "replace"))[0] == np.inf
