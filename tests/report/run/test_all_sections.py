"""What holds for every section: nothing private in public, no crash on damaged or hostile records, small charts."""

from __future__ import annotations

import copy
import importlib
import json
import math
from dataclasses import asdict

import pytest

from sordino.report.chart import MOST, Chart
from sordino.report.document import Document
from sordino.report.reading import read_run
from sordino.report.run.fields import RunSources
from support.section_records import PRIVATE, PUBLIC, SECRETS, contents, owner_round, public_round, sources

NAMES = (
    "accuracy", "convergence", "budget", "noise", "participation", "sites", "gaps", "traffic", "choices", "attacks",
    "audit", "environment",
)  # fmt: skip
SECTIONS = [importlib.import_module(f"sordino.report.run.{name}") for name in NAMES]
HOSTILE = (None, "text", [], {}, -1, 1e308, 10**400, math.nan, True, [[]], {"a": {"b": []}}, ["x", 1], "<script>" * 99)


def document(run):
    made = tuple(s for s in (module.section(run) for module in SECTIONS) if s is not None)
    return Document("made-up", "", run.records.audience, made, tuple(run.damage))


def written(run):
    return json.dumps(document(run).to_json(), allow_nan=False)  # also: every number is finite


def test_the_owner_sees_every_section_and_every_planted_number():
    text = written(sources(contents(), owner=True))
    assert [s["id"] for s in json.loads(text)["sections"]] == list(NAMES)
    assert [secret for secret in SECRETS if secret not in text] == []


def test_the_public_sees_no_planted_number_even_if_private_files_were_read():
    text = written(sources(contents()))
    assert [secret for secret in SECRETS if secret in text] == []
    assert [s["id"] for s in json.loads(text)["sections"]] == [
        "accuracy", "convergence", "budget", "noise", "gaps", "choices", "audit", "environment",
    ]  # fmt: skip
    assert "private/" not in text


@pytest.mark.parametrize("method", ["udp-fl", "fedsdp-paper"])
def test_a_real_run_shows_the_public_nothing_of_its_private_part(method, real_run, tmp_path):
    folder = real_run(method)
    whole = written(RunSources(read_run(folder, "public")))
    assert "private/" not in whole and document(RunSources(read_run(folder, "public"))).damage == ()
    assert whole == written(RunSources(read_run(folder / "public", "public"))).replace("public/public", "public")


def test_ids_of_sections_and_charts_are_unique_and_every_chart_names_its_source():
    for owner in (False, True):
        made = document(sources(contents(), owner))
        ids = [c.id for c in made.charts()]
        assert len(ids) == len(set(ids)) and len({s.id for s in made.sections}) == len(made.sections)
        assert all(c.source and c.summary and c.x.label and c.y.label for c in made.charts())


def test_charts_of_a_long_run_stay_small():
    held = contents()
    held["rounds"] = [
        public_round(1 + t % 6) | {"round": t + 1, "lost": "late" if t % 3 else None} for t in range(3000)
    ]
    held["owner_rounds"] = [owner_round(1 + t % 5) | {"round": t + 1} for t in range(3000)]
    for chart in document(sources(held, owner=True)).charts():
        assert all(len(s.points) <= MOST + 2 for s in chart.series), chart.id
        assert len(chart.cells) <= 100 and all(len(row) <= 500 for row in chart.cells)


# --- damaged and hostile records


def leaves(data, path=()):
    """Every place in nested records, the inner ones first."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield from leaves(value, (*path, key))
    if path:
        yield path


def changed(held, path, value):
    """The records with another value in one place; `...` deletes it. Only what leads there is copied."""
    if not path:
        return value
    copied = copy.copy(held)
    if len(path) == 1 and value is ...:
        copied.pop(path[0])
    else:
        copied[path[0]] = changed(held[path[0]], path[1:], value)
    return copied


def survives(held, owner):
    """Make the document of damaged records, unless the readers of records refuse their lines already."""
    try:
        run = sources(held, owner)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return
    if all(isinstance(getattr(run.records, name), dict) for name in PUBLIC):
        for section in document(run).sections:
            json.dumps([asdict(b) if not isinstance(b, Chart) else b.to_json() for b in section.blocks])


@pytest.mark.parametrize("part", [*PUBLIC, *PRIVATE, "attacks", "rounds", "owner_rounds"])
def test_no_section_fails_whatever_stands_in_one_place(part):
    held = contents()
    if part in ("rounds", "owner_rounds"):  # two rounds say as much as six
        held[part] = held[part][-2:]
    if part not in ("accounting", "result"):
        held["accounting"] = {}  # so that nothing is priced again every time
    for k, path in enumerate(leaves(held[part], (part,))):
        if len(path) > 1 + (part == "attacks"):  # every file of an attack holds an object, or is not read
            for value in (..., HOSTILE[k % len(HOSTILE)]):
                survives(changed(held, path, value), owner=True)


@pytest.mark.parametrize("method", ["udp-fl-paper", "fedsdp-paper", "adaptive-noise"])
def test_no_page_of_a_system_fails_whatever_a_method_recorded(method, real_run):
    lines = (real_run(method) / "private/records.jsonl").read_text().splitlines()
    held = contents() | {"owner_rounds": [json.loads(line) for line in lines[-2:]], "rounds": []}
    held["owner_rounds"][0]["decided"].get("clients", {}).clear()  # one round of clients is enough
    for k, path in enumerate(leaves(held["owner_rounds"], ("owner_rounds",))):
        if "decided" in path:
            survives(changed(held, path, HOSTILE[k % len(HOSTILE)]), owner=True)


def test_nothing_but_the_public_part_is_read_for_the_public_and_missing_files_are_no_error(tmp_path):
    for name in (*PUBLIC, *PRIVATE):
        for owner in (False, True):
            held = contents()
            del held[name]
            written(sources(held, owner))
    empty = {"plan": contents()["plan"]}
    assert document(sources(empty)).sections and document(sources(empty, owner=True)).sections
