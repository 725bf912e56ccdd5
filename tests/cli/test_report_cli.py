"""`sordino report` and `sordino plot`: what they write where, for whom, and what they refuse."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import sordino
from sordino.cli.main import main
from sordino.report import files
from support.comparisons import typical
from support.problems import federation, held_out, linear

PAGE, MARKDOWN = "<!doctype html>", "<!-- sordino report public -->"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run and a comparison."""
    folder = tmp_path_factory.mktemp("runs")
    keys = {"rounds": 3, "epsilon": 2.0, "mode": "research", "device": "cpu", "learning_rate": 0.1, "name": "it"}
    sordino.train(linear(), federation(), out=str(folder), test=held_out(), progress=False, **keys)
    typical(folder / "trial")
    return folder


@pytest.fixture
def here(made, tmp_path):
    """A copy of both that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


@pytest.fixture
def call(monkeypatch, capsys):
    """call("report", run) runs the command here and returns its exit code, its output and its errors."""

    def called(*words):
        monkeypatch.setattr(sys, "argv", ["sordino", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


def everything(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_public_report_is_made_of_the_public_part_alone(call, here):
    code, out, _ = call("report", here / "it")
    page = here / "it" / "public" / "report.html"
    assert code == 0 and out == f"Report: {page}\n" and page.read_text().startswith(PAGE)
    before = page.read_text()
    for path in (here / "it" / "private").rglob("*"):
        if path.is_file():
            path.write_text("secret" * 100)
    assert call("report", here / "it" / "public")[0] == 0  # the part names the run as well
    assert page.read_text() == before and "secret" not in before
    copy = shutil.copytree(here / "it" / "public", here / "handed-out")
    (copy / "report.html").unlink()
    assert call("report", copy)[1] == f"Report: {copy / 'report.html'}\n"


def test_the_owner_has_a_report_of_their_own(call, here):
    code, out, _ = call("report", here / "it", "--for", "owner")
    page = here / "it" / "private" / "report.html"
    assert code == 0 and out == f"Report: {page}\n" and 'class="badge owner"' in page.read_text()
    assert page.stat().st_mode & 0o077 == 0 and not (here / "it" / "public" / "report.html").exists()
    before = everything(here)
    for inside in (here / "it" / "public" / "mine.html", here / "trial" / ".." / "it" / "public" / "mine.html"):
        code, _, error = call("report", here / "it", "--for", "owner", "--out", inside)
        assert code == 2 and "must not be written into" in error
    code, _, error = call("plot", here / "it", "--for", "owner", "--out", here / "it" / "public" / "figures")
    assert code == 2 and "must not be written into" in error
    shutil.rmtree(here / "it" / "private")
    code, _, error = call("report", here / "it", "--for", "owner")
    assert code == 2 and "has no private part" in error
    assert everything(here).items() <= before.items()


def test_markdown_and_json_go_to_standard_output_or_to_a_file(call, here):
    before = everything(here)
    code, out, _ = call("report", here / "it", "--format", "md")
    assert code == 0 and out.startswith(MARKDOWN) and "\n# it\n" in out
    data = json.loads(call("report", here / "it", "--json")[1])
    assert data["kind"] == "sordino report" and data["audience"] == "public" and data["sections"][0]["blocks"]
    both = json.loads(call("report", here / "it", here / "trial", "--format", "json")[1])
    assert [d["title"] for d in both] == ["it", "trial"]
    assert everything(here) == before
    out = here / "out"
    out.mkdir()
    code, said, _ = call("report", here / "it", here / "trial", "--format", "md", "--out", out)
    assert code == 0 and said.count("Report: ") == 2
    assert {p.name for p in out.iterdir()} == {"it.md", "trial.md"}
    assert call("report", here / "it", "--format", "md", "-o", out / "it.md")[0] == 0  # over an earlier one
    assert call("report", here / "trial")[1] == f"Report: {here / 'trial' / 'public' / 'report.html'}\n"


def test_nothing_but_a_report_is_overwritten(call, here):
    letter = here / "letter.html"
    letter.write_text("<!doctype html><p>Dear all")
    link = here / "link.html"
    link.symlink_to(letter)
    before = everything(here)
    wrong = (
        ((here / "it", "-o", letter), "is not a report of Sordino"),
        ((here / "it", "-o", link), "is not a report of Sordino"),
        ((here / "it", "-o", here / "no" / "where.html"), "there is no folder"),
        ((here / "it", here / "trial", "-o", here / "a.html"), "an existing folder for 2 reports"),
        ((here / "it", here / "it", "-o", here), "two of these reports"),
        ((here / "nothing",), "there is no run folder"),
        ((here / "it", here / "nothing"), "there is no run folder"),
        ((letter,), "is a file, not a run folder"),
        ((here,), "is not a run folder"),
        ((here / "trial", "--for", "owner"), "is a comparison"),
        ((here / "it", "--verify", "--open"), "--verify checks and writes nothing"),
        ((here / "it", "--signers", letter), "--signers belongs to --verify"),
        ((here / "it", "--json", "--format", "md"), "give one of them"),
        ((here / "it", "--json", "--open"), "--open shows pages"),
    )
    for words, said in wrong:
        code, out, error = call("report", *words)
        assert code == 2 and said in error and not out, (words, out, error)
    assert everything(here) == before and not list(here.rglob("*.tmp"))


def test_a_full_disk_leaves_the_earlier_report(here, monkeypatch):
    page = files.write_report(here / "it")
    before = page.read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(sordino.SordinoError, match=r"No space left on device\. Name another"):
        files.write_report(here / "it")
    assert page.read_bytes() == before and {p.name for p in page.parent.iterdir() if p.suffix == ".tmp"} == set()
    assert files.automatic(here / "it").startswith("Note: the report was not written (cannot write")


def test_a_link_out_of_the_run_is_not_followed(call, here):
    shutil.move(here / "it" / "public", here / "elsewhere")
    (here / "it" / "public").symlink_to(here / "elsewhere")
    code, _, error = call("report", here / "it")
    assert code == 2 and "link" in error and not (here / "elsewhere" / "report.html").exists()


def test_a_run_is_verified_and_not_touched(call, here):
    assert call("report", here / "it")[0] == 0
    before = everything(here)
    code, out, _ = call("report", here / "it", "--verify")
    assert code == 0 and "All is well." in out and "report.html shows these records" in out
    assert json.loads(call("report", here / "it", "--verify", "--json")[1])["well"] is True
    assert everything(here) == before
    (here / "it" / "public" / "result.json").write_text("{}")
    assert call("report", here / "it", "--verify")[0] == 1


def test_figures_are_written_one_by_one(call, here):
    pytest.importorskip("matplotlib")
    code, out, _ = call("plot", here / "it", "--format", "svg")
    assert code == 0 and out.startswith(f"{here / 'it' / 'figures'}: ")
    written = sorted(p.name for p in (here / "it" / "figures").iterdir())
    charts = [b["id"] for s in json.loads(call("report", here / "it", "--json")[1])["sections"]
              for b in s["blocks"] if b["block"] == "Chart"]  # fmt: skip
    assert written == sorted(f"{id}.svg" for id in charts) and len(written) >= 3
    mine = here / "it" / "figures" / written[0]
    mine.write_text("<svg>mine</svg>")
    before = everything(here)
    code, _, error = call("plot", here / "it", "--format", "svg")
    assert code == 2 and "is not a report of Sordino" in error and everything(here) == before


def test_a_result_writes_its_report(here):
    result = sordino.load(here / "it")
    assert result.report() == here / "it" / "public" / "report.html"
    mine = result.report(owner=True, out=here / "mine.html")
    assert mine == here / "mine.html" and 'class="badge owner"' in mine.read_text()
