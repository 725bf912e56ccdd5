"""Page one: what is promised to whom, what it leaves to an attacker, what it leaves out, and what seals it."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from dataclasses import replace

import pytest
from scipy.stats import norm

from sordino.core.errors import RunError
from sordino.report.document import DataTable, FactSheet, Paragraph, Tiles
from sordino.report.run import first_page, sealed
from sordino.report.run.first_page import facts, section
from sordino.report.run.guarantee_words import AuditSummary
from sordino.report.run.words import small
from support.run_records import MULTIPLIER, ROUNDS, accounting, guarantee, infinite, seal, sources, write

MU = math.sqrt(ROUNDS) / MULTIPLIER
AUDIT = {
    "method": "dp-sgd", "unit": "record", "relation": "add/remove", "viewer": "server", "delta": 1e-5,
    "confidence": 0.95, "least": 0.92991, "least_gaussian": 1.4, "alarm": False, "trials": [],
}  # fmt: skip
CLAIM = {
    "epsilon": 0.5, "delta": 1e-5, "source": "A. Paper, Theorem 1", "why_not": "the bound is that of a mean",
    "scope": "total", "unit": "record", "viewer": "server",
}  # fmt: skip


def text_of(part):
    """All words of a section."""
    out = []
    for block in part.blocks:
        match block:
            case Paragraph():
                out.append(block.text)
            case FactSheet():
                out += [f"{name}: {value}" for name, value in block.rows]
            case Tiles():
                out += [f"{tile.value} {tile.label} {tile.detail}" for tile in block.tiles]
            case DataTable():
                out += [block.title, block.note, *(" ".join(row) for row in block.rows)]
    return "\n".join(out)


def page_of(run, owner=False):
    return text_of(section(sources(run, owner)))


def lead(run):
    return next(b.text for b in section(sources(run)).blocks if isinstance(b, Paragraph) and b.tone == "lead")


def row(run, name, owner=False):
    sheets = [b for b in section(sources(run, owner)).blocks if isinstance(b, FactSheet)]
    return next((value for sheet in sheets for key, value in sheet.rows if key == name), None)


# --- the two sentences


def test_two_sentences_name_total_unit_relation_viewers_rounds_accountant_and_audit(tmp_path):
    said = lead(write(tmp_path / "run", audit=AUDIT))
    epsilon = guarantee()["epsilon"]
    shown = math.ceil(1000 * epsilon) / 1000
    first, second = said.split(". This ")
    assert f"epsilon = {shown:g} and delta = 1e-05 (1 in 100,000)" in first
    assert "over 3 rounds, any single record of any client is protected" in first
    assert "the record being added or removed, against a curious server that sees every message and who" in first
    assert "and against anyone who sees every released model but not who takes part" in first
    assert "exact formula for Gaussian noise" in second
    assert "epsilon is at least 0.929 (95 % confidence)" in second  # rounded down, never up


def test_without_an_audit_it_says_so_and_names_the_command(tmp_path):
    assert "no audit that tries to refute it is on record here (`sordino audit RUN` makes one)" in lead(
        write(tmp_path / "run")
    )


def test_viewers_with_other_epsilons_and_without_any_are_named_with_theirs(tmp_path):
    held = (guarantee(), guarantee("public", epsilon=0.25), infinite("client", "it sees the sums"))
    run = write(tmp_path / "run", held)
    assert "with epsilon = 0.25 and delta = 1e-05 against anyone" in lead(run)
    warning = [b.text for b in section(sources(run)).blocks if isinstance(b, Paragraph) and b.tone == "warning"]
    assert len(warning) == 1 and warning[0].startswith("There is no guarantee (epsilon is infinite) against any other")
    assert warning[0].endswith("because it sees the sums.")


def test_a_viewer_with_a_guarantee_is_on_page_one_also_if_the_budget_names_another(tmp_path):
    run = write(tmp_path / "run", (infinite(), guarantee("public")))
    found = facts(sources(run))
    assert found["standing"] == "guarantee" and found["guarantee"]["viewer"] == "public"
    assert found["guarantees"]["server"]["infinite"] and "against a curious server" in page_of(run)


def test_a_method_without_noise_has_no_guarantee_and_no_list_of_what_it_leaves_out(tmp_path):
    run = write(tmp_path / "run", (infinite(), infinite("public")), accounting=None)
    part = section(sources(run))
    assert part.title == "No guarantee" and "epsilon is infinite" in lead(run) and "no noise is added" in lead(run)
    assert row(run, "Preparation") is None and "no limit" in text_of(part)
    found = facts(sources(run))
    assert found["standing"] == "none" and found["attack"]["found"] is None and found["not_covered"] == {}


def test_the_claim_of_a_paper_stands_beside_what_is_accounted_and_audited(tmp_path):
    run = write(tmp_path / "run", (infinite(reason="the noise is computed from records"),), result={"claim": CLAIM},
                audit=AUDIT, accounting=None)  # fmt: skip
    table = next(b for b in section(sources(run)).blocks if isinstance(b, DataTable))
    assert [r[1] for r in table.rows] == ["0.5", "infinite", "≥ 0.929"]
    assert table.caution == (0,) and "does not hold: the bound is that of a mean" in table.note
    assert "because the noise is computed from records" in lead(run)
    assert "not comparable" not in table.note
    other = write(tmp_path / "two", (guarantee(unit="client"),), result={"claim": CLAIM})
    note = next(b for b in section(sources(other)).blocks if isinstance(b, DataTable)).note
    assert "about a record and the accounted bound about a client: not comparable" in note


def test_an_alarm_of_the_audit_comes_before_everything(tmp_path):
    run = write(tmp_path / "run", audit=AUDIT | {"alarm": True, "least": 9.5})
    first = section(sources(run)).blocks[0]
    assert isinstance(first, Paragraph) and first.tone == "warning" and "refuted" in first.text


# --- a run that has not ended


@pytest.mark.parametrize("parts, words", [("both", "stopped before its end"), ("public", "a copy of a run")])
def test_an_unfinished_run_has_a_promise(tmp_path, parts, words):
    run = write(tmp_path / "run", finished=False, accounting=None)
    if parts == "both":
        (run / "private").mkdir()
        (run / "private" / "lock").touch()
    part = section(sources(run))
    assert part.title == "The promise" and words in text_of(part) and "1 of 3 rounds is on record" in text_of(part)
    assert "is to be protected" in lead(run) and "a run is sealed when it ends" in text_of(part)
    assert facts(sources(run))["standing"] == "promise"
    assert "What this promise does not cover:" in text_of(part) and "this guarantee" not in text_of(part)


def test_a_running_run_has_a_promise(tmp_path):
    found = sources(write(tmp_path / "run", finished=False, accounting=None))
    running = replace(found, records=replace(found.records, state="running"))
    assert "This run goes on: 1 of 3 rounds is on record" in text_of(section(running))


# --- what an attacker may achieve


def test_the_tiles_are_those_of_the_gaussian_trade_off(tmp_path):
    found = facts(sources(write(tmp_path / "run")))["attack"]
    tpr = norm.cdf(norm.ppf(0.01) + MU)
    assert found["found"] == pytest.approx(tpr, rel=0.02) and found["found"] >= tpr  # lines around the curve
    assert found["sure_from_half"] == pytest.approx(tpr / (tpr + 0.01), rel=0.01)
    assert found["right"] == pytest.approx(norm.cdf(MU / 2), rel=0.01)


def test_the_tiles_of_a_pure_release_follow_from_epsilon_alone(tmp_path):
    event = {"kind": "Pure", "epsilon": 0.4}
    pure = [guarantee(v, epsilon=1.2, delta=0.0) for v in ("server", "public")]
    run = write(tmp_path / "run", tuple(pure), accounting=accounting(event=event) | {"delta": 0.0, "spendable": 0.0})
    found = facts(sources(run))["attack"]
    assert found["found"] == pytest.approx(0.01 * math.exp(1.2))
    assert found["sure_from_half"] == pytest.approx(math.exp(1.2) / (1 + math.exp(1.2)))
    assert found["right"] == pytest.approx(math.exp(1.2) / (1 + math.exp(1.2)))


# --- what is not covered


def test_topics_stand_only_where_they_concern_the_run(tmp_path):
    own = write(tmp_path / "own")
    assert row(own, "Seeded noise") is None and "floating point" in row(own, "Floating point")
    assert row(own, "Taken as public") == "How many records each client has."
    assert row(own, "Labels") == "The names of the 2 classes are public." and row(own, "Other uses")
    assert row(own, "Metrics") is row(own, "Collusion") is row(own, "Who took part") is row(own, "Plug-ins") is None
    seeded = write(
        tmp_path / "seeded", tuple(guarantee(v, mode="research", exact=True) for v in ("server", "public")),
        plan={"public_data": True, "evaluated_on": "public test data"}, spec="seed = 7\n",
    )  # fmt: skip
    assert "which spec.toml states" in row(seeded, "Seeded noise") and row(seeded, "Floating point") is None
    assert (
        "public test records" in row(seeded, "Metrics") and row(seeded, "Labels") is row(seeded, "Other uses") is None
    )


def test_colluders_draws_units_and_plugins(tmp_path):
    held = (guarantee("server+2", channel="secure-sum", unit="client"), guarantee("public", epsilon=0.1, unit="client"))
    run = seal(write(tmp_path / "run", held, plan={"expected_cohort": 4.0}), plugins={"methods/mine": "d" * 64})
    assert "more than 2 clients" in row(run, "Collusion") and "bound for the server holds" in row(run, "Who took part")
    assert "methods/mine" in row(run, "Plug-ins") and row(run, "Several records") is None
    labels = write(tmp_path / "labels", (guarantee(unit="label", relation="replace"),))
    assert "everything else in the record is not" in row(labels, "Other columns")


# --- the seal, and all runs on the same data


def test_hashes_are_those_of_the_files_and_the_commitments_those_of_the_seal(tmp_path):
    run = seal(write(tmp_path / "run"))
    found, said = facts(sources(run)), page_of(run)
    for path in (run / "public").iterdir():
        hash = hashlib.sha256(path.read_bytes()).hexdigest()
        assert hash[:16] in said
        assert path.name == "seal.json" or found["hashes"][path.name] == hash
    assert (
        found["seal"] == hashlib.sha256((run / "public" / "seal.json").read_bytes()).hexdigest()
        and found["seal"] in said
    )
    assert found["commitments"] == {"ledger": "b" * 64, "private": "a" * 64} and "b" * 64 in said
    assert row(run, "Spec (SHA-256)") == hashlib.sha256((run / "public" / "spec.toml").read_bytes()).hexdigest()
    whole = text_of(sealed.section(sources(run)))
    assert all(hash in whole for hash in found["hashes"].values()) and "a" * 64 in whole


def test_the_signature_is_mentioned_and_hashes_alone_prove_no_author(tmp_path):
    run = seal(write(tmp_path / "run"))
    assert "Hashes alone prove no author" in row(run, "Signature")
    (run / "public" / "seal.json.sig").write_text("anything")
    assert "does not check it" in row(run, "Signature")


def test_a_finished_run_without_a_seal_says_what_that_means(tmp_path):
    run = write(tmp_path / "run")
    assert "nothing shows whether these files were changed" in row(run, "Seal")
    assert sealed.section(sources(run)) is None


def test_the_total_over_all_runs_is_the_published_one_or_said_to_be_private(tmp_path):
    told = "run 2 on these data (clinic), together epsilon 5.1, delta 2e-05 for record"
    named = write(tmp_path / "named", result={"together": told})
    assert row(named, "All runs on these data") == f"R{told[1:]}."
    assert "sordino ledger show" in row(write(tmp_path / "unnamed"), "All runs on these data")
    public = write(tmp_path / "public", plan={"public_data": True})
    assert "public benchmark" in row(public, "All runs on these data")


# --- the boundary


def test_the_public_page_holds_nothing_of_the_private_part(tmp_path):
    run = seal(write(tmp_path / "run"))
    private = run / "private"
    private.mkdir()
    planted = {
        "result": {"guarantees": {"server": guarantee(epsilon=0.123456)}}, "audit": AUDIT | {"least": 0.31415},
        "ledger": {"path": None, "job": "feedbeeffeedbeef", "data": "patients of 1987", "entries": 424242,
                   "head": "e" * 64},
        "participation": {"most": 271828},
    }  # fmt: skip
    for name, content in planted.items():
        (private / f"{name}.json").write_text(json.dumps(content))
    (private / "notes.txt").write_text("overlaps with the ward of 1987\n")
    (private / "error.json").write_text('{"error": "record 1987"}')
    (private / "lock").touch()
    said = page_of(run) + json.dumps(facts(sources(run)))
    for secret in ("0.123", "0.314", "feedbeef", "1987", "424242", "424,242", "e" * 64, "2718"):
        assert secret not in said, secret
    bare = shutil.copytree(run / "public", tmp_path / "bare" / "public").parent
    assert page_of(bare) + json.dumps(facts(sources(bare))) == said  # it does not even matter that there is one
    owners = page_of(run, owner=True)
    assert "424,242" in owners and "0.314" in owners


# --- damaged and hostile records


WRONG = (None, 0, -1, 1e400, "NaN", "<script>", [], {}, [[]], True, "\x1b[31m" + "a" * 5000)


@pytest.mark.parametrize("value", WRONG, ids=lambda v: repr(v)[:12])
@pytest.mark.parametrize("file", ["result", "plan", "seal", "audit", "accounting"])
def test_no_field_of_any_type_stops_the_page(tmp_path, file, value):
    run = seal(write(tmp_path / "run", result={"claim": CLAIM}, audit=AUDIT))
    path = run / "public" / f"{file}.json"
    whole = json.loads(path.read_text())
    for holder in (whole, *(v for v in whole.values() if isinstance(v, dict))):
        for key in list(holder):
            before, holder[key] = holder[key], value
            path.write_text(json.dumps(whole))
            holder[key] = before
            try:
                found = sources(run)
            except RunError:
                continue  # the plan names no method and no promise
            said = text_of(section(found)) + json.dumps(facts(found), allow_nan=False)
            assert "\x1b" not in said and len(said) < 60_000


def test_a_guarantee_that_cannot_be_read_is_none(tmp_path):
    run = write(tmp_path / "run", (guarantee(epsilon="2"),))
    part = sources(run)
    assert section(part).title == "No guarantee that can be read" and "count on none" in text_of(section(part))
    assert any("guarantee is not complete" in text for text in part.damage)


def test_events_that_cost_more_than_the_guarantee_says_are_damage_and_not_used(tmp_path):
    part = sources(write(tmp_path / "run", accounting=accounting(event={"kind": "Gaussian", "noise_multiplier": 1.0})))
    assert "not again for this report" in text_of(section(part))
    assert any("One of them is not as the run wrote it" in text for text in part.damage)


def test_places_of_the_records_that_disagree_about_the_guarantee_are_damage(tmp_path):
    def damage_of(name, **files):
        part = sources(write(tmp_path / name, **files))
        section(part)
        return [text for text in part.damage if "One of them is not as the run wrote it" in text]

    assert damage_of("honest") == []
    smaller = {"server": guarantee(epsilon=0.1), "public": guarantee("public")}
    (said,) = damage_of("smaller", result={"guarantees": smaller})
    assert "guarantee and guarantees.server differ" in said and "shown as it stands" in said
    (said,) = damage_of("renamed", result={"guarantees": {"server": guarantee(), "public": guarantee()}})
    assert "guarantees.public is about another viewer" in said
    (said,) = damage_of("unnamed", result={"guarantees": {"public": guarantee("public")}})
    assert "a viewer whom guarantees does not name" in said
    (said,) = damage_of("delta", accounting=accounting() | {"delta": 1e-3})
    assert "delta is 0.001, but the guarantee says 1e-05" in said
    other = accounting(("server",))
    other["viewers"]["server"] |= {"unit": "client"}
    (said,) = damage_of("unit", accounting=other)
    assert "unit is client, but the guarantee says record" in said


@pytest.mark.parametrize(
    ("value", "shown"), [(1e-5, "1 in 100,000"), (1e-18, "1 in 10 to the power of 18"), (0.0, "zero")]
)
def test_small_probabilities_are_said_as_people_say_them(value, shown):
    assert small(value) == shown


@pytest.mark.parametrize(
    ("confidence", "words"), [(0.95, "95 %"), (0.955, "95.5 %"), (0.9996, "99.9 %"), (0.99, "99 %")]
)
def test_an_audit_is_not_said_to_be_surer_than_it_is(confidence, words):
    summary = AuditSummary(1.0, None, confidence, "record", "server", False, "")
    assert summary.sure == f"{words} confidence"


def test_every_number_names_where_it_comes_from(tmp_path):
    for block in section(sources(seal(write(tmp_path / "run", result={"claim": CLAIM}, audit=AUDIT)))).blocks:
        assert isinstance(block, Paragraph) or block.source.startswith("public/")
    assert first_page.FALSE_ALARMS == 0.01  # as the words say
