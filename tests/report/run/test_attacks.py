"""What attacks and audits found."""

from __future__ import annotations

import base64

import pytest

from sordino.report.chart import Chart
from sordino.report.document import DataTable, Paragraph, PictureFile
from sordino.report.reading import read_run
from sordino.report.run import attacks, audit
from sordino.report.run.fields import RunSources
from support.report_documents import DOT
from support.run_records import write
from support.section_records import attack, contents, sources


def charts(section):
    return {b.id: b for b in section.blocks if isinstance(b, Chart)}


def test_attacks_are_the_owners():
    assert attacks.section(sources(contents())) is None
    section = attacks.section(sources(contents(), owner=True))
    assert section.blocks[0].tone == "warning" and "do not pass it on" in section.blocks[0].text


def test_figures_stand_beside_those_without_privacy_and_chance():
    table = next(b for b in attacks.section(sources(contents(), owner=True)).blocks if isinstance(b, DataTable))
    assert table.rows == (
        ("loss-threshold by server", "Whether a record was trained on", "AUC", "0.625 (0.5 to 0.75)",
         "0.875 (0.5 to 0.75)", "0.5"),
    )  # fmt: skip


def test_the_roc_curve_is_on_logarithmic_axes_beside_guessing_and_the_bound():
    chart = charts(attacks.section(sources(contents(), owner=True)))["attacks-roc-1"]
    lines = {s.name: s for s in chart.series}
    assert lines["this run"].points == ((0.01, 0.02), (0.1, 0.3), (1.0, 1.0))
    assert (chart.x.scale, chart.y.scale) == ("log", "log") and lines["guessing"].role == "reference"
    for x, y in lines["most that the guarantee allows"].points:
        assert x <= y + 1e-12 <= 1 + 1e-9  # no bound below guessing
    assert "finds 2.0 % of the training records, 50.0 % without privacy" in chart.summary


def test_a_guarantee_for_clients_says_nothing_of_single_records():
    held = contents()
    for g in (held["result"]["guarantee"], *held["result"]["guarantees"].values()):
        g["unit"] = "client"
    chart = charts(attacks.section(sources(held, owner=True)))["attacks-roc-1"]
    assert not [s for s in chart.series if s.role == "limit"]


@pytest.mark.parametrize("roc", [{"this run": 1}, {"this run": [[0.1], [0.2, 0.3]]}, {"this run": [[2, 0], [0, 1]]}])
def test_a_damaged_curve_is_left_out(roc):
    held = contents()
    held["attacks"] = [attack() | {"roc": roc}]
    assert not charts(attacks.section(sources(held, owner=True)))


def test_pictures_of_reconstructions_are_shown_if_they_are_pictures_inside_the_folder(tmp_path):
    run = write(tmp_path / "run", plan={"public_data": True})
    folder = run / "private" / "attacks"
    folder.mkdir(parents=True)
    outside = tmp_path / "secret.png"
    outside.write_bytes(base64.b64decode(DOT))
    for name in ("good", "text", "link"):
        (folder / f"{name}.json").write_text('{"attack": "inverting", "kind": "reconstruction", "sentence": "Seen."}')
    (folder / "good.png").write_bytes(base64.b64decode(DOT))
    (folder / "text.png").write_text("<svg onload=alert(1)>")
    (folder / "link.png").symlink_to(outside)
    section = attacks.section(RunSources(read_run(run, "owner")))
    pictures = [b for b in section.blocks if isinstance(b, PictureFile)]
    assert [p.source for p in pictures] == ["private/attacks/good.png"] and pictures[0].png == DOT


# --- audits


def test_an_audit_shows_all_its_bounds_below_the_accounted_epsilon():
    section = audit.section(sources(contents()))
    chart = charts(section)["audit-bounds"]
    assert [y for _, y in chart.series[0].points] == [0.25, 0.75, 0.5, 0.125]
    assert {y for _, y in chart.series[1].points} == {1.5} and "0.75, below the accounted 1.5" in chart.summary
    table = next(b for b in section.blocks if isinstance(b, DataTable) and b.title == "Lower bounds of epsilon")
    assert [row[2:5] for row in table.rows][:2] == [("500", "0.25", "6"), ("500", "0.75", "6")]
    assert "found nothing against the guarantee" in section.blocks[0].text


def test_an_alarm_is_a_warning_at_the_top():
    held = contents()
    held["audit"] |= {"alarm": True, "least": 9.0}
    held["audit"]["moves"][0] |= {"fails": True}
    section = audit.section(sources(held))
    assert section.blocks[0].tone == "warning" and "refutes" in section.blocks[0].text
    assert next(b for b in section.blocks if isinstance(b, DataTable) and b.caution).caution == (0,)
    assert "found nothing" not in " ".join(b.text for b in section.blocks if isinstance(b, Paragraph))


def test_an_audit_of_another_viewer_is_the_owners(tmp_path):
    run = write(tmp_path / "run")
    (run / "private").mkdir()
    (run / "private" / "audit.json").write_text(
        '{"method": "dp-sgd", "alarm": false, "least": 0.123, "sentence": "S."}'
    )
    assert audit.section(RunSources(read_run(run, "public"))) is None
    section = audit.section(RunSources(read_run(run, "owner")))
    assert section.blocks[0].tone == "warning" and "owner's alone" in section.blocks[0].text
