"""How the run was made: every key of the run file, versions, notes; what is the owner's stays with the owner."""

from __future__ import annotations

from sordino.report.document import DataTable, FactSheet, Listing
from sordino.report.run import environment
from support.section_records import contents, sources


def test_every_key_of_the_run_file_is_listed_and_folded_away():
    section = environment.section(sources(contents()))
    table = next(b for b in section.blocks if isinstance(b, DataTable))
    assert section.folded and dict(table.rows) == {
        "method": "dp-sgd", "dataset": "patients", "rounds": "6", "clip": "0.5", "delta": "1e-05",
        "budgets": "1,1,2,2,2", "federation": "flower", "clients": "5", "standardise": "false",
    }  # fmt: skip


def test_versions_and_the_place_are_told():
    facts = dict(next(b for b in environment.section(sources(contents())).blocks if isinstance(b, FactSheet)).rows)
    assert facts["torch"] == "2.13" and facts["threads"] == "1" and facts["Sordino"] == "0.1.0"
    assert facts["clients ran as"] == "real sites over Flower"


def test_notes_for_the_owner_are_not_in_the_public_list():
    for owner in (False, True):
        lists = [b.items for b in environment.section(sources(contents(), owner)).blocks if isinstance(b, Listing)]
        assert lists[0] == ("a learning rate",) and (("told-to-the-owner",) in lists) == owner
