"""The page of a federation: its server, its newest job and its sites; what tells who was drawn is the operator's."""

from __future__ import annotations

import json
import shutil

import pytest

from sordino.deploy.create import create
from sordino.ui.api import ViewAnswers
from support.views import make_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A federation of two sites, made as by `sordino deploy init`."""
    here = tmp_path_factory.mktemp("federation")
    (here / "spec.toml").write_text('rounds = 3\nepsilon = 1.5\nmethod = "dp-sgd"\nclasses = ["a", "b"]\n')
    return create(here / "spec.toml", here / "clinics", 2, host="fl.example.org", port=20000)


@pytest.fixture
def job(made):
    """A job of the federation: two of three rounds, and sites that answered or had trouble."""
    run = make_run(made.runs, "job")
    sites = [
        {"name": "site-1", "answered": 41, "silent": 0, "failed": 0, "epsilon": 1.2345, "trouble": None},
        {"name": "site-2", "answered": 17, "silent": 24, "failed": 0, "epsilon": 0.75, "trouble": "no \x1b[31manswer"},
    ]
    text = {"rounds": 3, "done": 2, "updated": "2027-01-01T10:00:00Z", "sites": sites}
    (run / "private" / "federation.json").write_text(json.dumps(text))
    yield run
    shutil.rmtree(run)


def page(made, audience="public"):
    answers = ViewAnswers([made.path], audience=audience)
    assert len(answers.answer(("about",), {})["federations"]) == 1
    return answers.answer(("federation",), {})


def test_a_federation_without_a_job_shows_its_sites(made):
    found = page(made)
    text = json.dumps(found)
    assert "error" not in found and "2 sites, server at fl.example.org:20000" in text
    assert "No job has started yet" in text and "sordino deploy up" in text
    for part in ("superlink", "superexec", "gate", "site-1", "site-2"):
        assert part in text


def test_a_job_is_shown_and_who_answered_is_the_operators(made, job):
    public, owner = json.dumps(page(made)), json.dumps(page(made, "owner"))
    for text in (public, owner):
        assert "round 2 of 3" in text and "Accuracy with privacy: 82.00 %" in text
    for only in ("1.235", "0.75", "[31manswer", "58 answers, 24 missing", str(job)):
        assert only in owner
    for private in ("1.235", "0.75", 'answer"', "58 answers", str(job), str(made.path)):
        assert private not in public
    assert "it is for the operator alone" in public and "\\u001b" not in owner


@pytest.mark.parametrize("guarantees", [3, {"server": 3}, {"server": {}}, [1], {"server": {"epsilon": "x"}}])
def test_damaged_records_are_no_error(made, job, guarantees):
    file = job / "public" / "result.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"guarantees": guarantees}))
    assert "round 2 of 3" in json.dumps(page(made)) and "error" not in page(made)
    (job / "private" / "federation.json").write_text('{"rounds": 3, "do')
    assert "No job has started yet" in json.dumps(page(made))
