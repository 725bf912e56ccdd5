"""The same people's data are recognised whatever was done to the file; other people's are not taken for theirs."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
import pytest

import sordino
from sordino.core.errors import BudgetError, RunError
from sordino.data.clients import LazyClients
from sordino.ledger import home
from sordino.ledger.ledger import Budget, Ledger
from sordino.runs import build
from sordino.runs.run import execute
from sordino.spec import spec
from support.problems import federation, mlp, registry

COLUMNS = ("age", "pressure", "sugar", "weight")
KEYS = {
    "label_column": "sick", "features": "none", "clients": 4, "rounds": 1, "epsilon": 1.0, "delta": 1e-5,
    "learning_rate": 0.1, "device": "cpu",
}  # fmt: skip


def people(seed=0, rows=60):
    draw = np.random.default_rng(seed)
    found = pd.DataFrame(draw.normal(50, 12, size=(rows, 4)).round(3), columns=COLUMNS)
    return found.assign(ward=draw.integers(0, 2, rows), sick=draw.integers(0, 2, rows))


@pytest.fixture
def study(tmp_path, monkeypatch):
    """study(table, **keys) writes a table and runs on it; what the owner alone is told is in study.told."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all.toml").write_text("".join(f"[{c}]\nmin = 0\nmax = 100\n" for c in COLUMNS))

    def go(table, file="data.csv", **keys):
        table.to_csv(tmp_path / file, index=False)
        keys = KEYS | {"dataset": file, "schema": "all.toml"} | keys
        wanted = spec.from_dict({k: v for k, v in keys.items() if v is not None})
        go.told = []

        def tell(text):
            if not text.endswith("columns that are not in the schema are left out: ward."):  # so in every study here
                go.told.append(text)

        return execute(build.from_spec(wanted), own_model=False, owner=tell)

    return go


@pytest.fixture
def spent(study):
    """One run of epsilon 1 on everyone, and a budget of 1.5 for each data set."""
    study(people())
    set_budget(1.5)
    return study


def set_budget(epsilon, data=""):
    book = Ledger(registry())
    book.set_budget(Budget(epsilon, 1e-3, "plans", None), data)
    book.close()


def flipped(table):
    return table[list(reversed(table.columns))]


def other_file(table):
    return table.sample(frac=1, random_state=3)


EVASIONS = {
    "permuted": (other_file, {}),
    "another seed": (lambda t: t, {"seed": 5, "clients": 6}),
    "one dropped": (lambda t: t.drop(index=17), {}),
    "one duplicated": (lambda t: pd.concat([t, t.iloc[[4]]]), {}),
    "scaled a little": (lambda t: t.assign(**{c: t[c] * (1 + 1e-7) for c in COLUMNS}), {}),
    "columns flipped": (flipped, {}),
    "labels renamed": (lambda t: t.assign(sick=1 - t["sick"]), {}),
    "another out": (lambda t: t, {"out": "elsewhere"}),
    "grown": (lambda t: pd.concat([t, people(9, 5)]), {}),
    "another schema": (lambda t: t, {"schema": "short.toml"}),
    "another label": (lambda t: t, {"label_column": "ward"}),
    "half of them": (lambda t: t.iloc[:30], {}),
    "numbers as text": (lambda t: t.assign(age=t["age"].map(lambda v: f" {v}0 ")), {}),
    "dealt by column": (lambda t: t, {"client_column": "ward"}),
    "by client": (lambda t: t, {"client_column": "ward", "method": "dp-fedavg"}),
    "another name": (lambda t: t, {"data_name": "something-else"}),
}


@pytest.mark.parametrize("evasion", EVASIONS)
def test_a_small_change_gives_no_fresh_budget(evasion, spent, tmp_path):
    change, keys = EVASIONS[evasion]
    (tmp_path / "short.toml").write_text("[age]\nmin = 0\nmax = 200\n[sugar]\nmin = 0\nmax = 100\n")
    table = people()
    before = sorted(p.name for p in (tmp_path / "runs").iterdir())
    entries = Ledger(registry(), "read").chain.head()
    with pytest.raises(BudgetError, match=r"left: epsilon 0\.5|gives no guarantee"):
        spent(change(table), "other.csv", **keys)
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == before and not (tmp_path / "elsewhere").exists()
    assert Ledger(registry(), "read").chain.head() == entries


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x[:, ::-1].copy(), lambda x: x * (1 + 1e-7)])
def test_a_table_that_comes_back_as_arrays_is_known(change, spent):
    x, y = people()[list(COLUMNS)].to_numpy(), people()["sick"].to_numpy()
    clients = [(change(x)[i::3].astype(np.float32), y[i::3]) for i in range(3)]
    model = build.from_spec(spec.from_dict(KEYS | {"dataset": "data.csv", "schema": "all.toml"})).model.module
    with pytest.raises(BudgetError, match=r"left: epsilon 0\.5"):
        sordino.train(model, clients, epsilon=1.0, rounds=1, device="cpu")


def test_other_people_are_granted_and_shared_ones_are_charged_the_most_they_have_paid(spent):
    spent(people(1), "others.csv")
    assert spent.told == []
    with pytest.raises(BudgetError, match=r"left: epsilon 0\.5"):
        spent(pd.concat([people(2, 40), people().iloc[:1]]), "nearly.csv")  # a single known person is enough
    spent(pd.concat([people(2, 40), people().iloc[:1]]), "nearly.csv", epsilon=0.5)
    with pytest.raises(BudgetError, match=r"left: epsilon \d\.\d+e-0[56]"):
        spent(people().iloc[:1].pipe(lambda t: pd.concat([t, people(3, 30)])), "third.csv", epsilon=0.1)
    spent(people().iloc[1:], "rest.csv", epsilon=0.4)  # the rest have paid 1


def test_rows_that_are_declared_public_are_not_counted(study):
    table = people().assign(part=["test"] * 20 + ["train"] * 40)
    study(table, split_column="part")
    set_budget(1.5)
    shown = table.drop(columns="part")
    study(pd.concat([shown.iloc[:20], people(6)]), "others.csv")  # those twenty have spent nothing
    with pytest.raises(BudgetError, match="1 of 61 records"):
        study(pd.concat([shown.iloc[20:21], people(7)]), "third.csv")


def test_the_owner_alone_is_told_how_many_are_known_and_from_where(spent, tmp_path, capfd, monkeypatch):
    set_budget(9.0)
    spent(people(), "again.csv", epsilon=0.5, data_name="study", name="second")
    (text,) = spent.told
    assert "60 of 60 records are known from data without a name" in text and "epsilon 1" in text, text
    assert "sordino ledger distinct study" in text
    part = pd.concat([people().iloc[:7], people(5)])
    result = spent(part, "part.csv", epsilon=0.001, data_name="other", name="third")
    assert any(t.startswith("7 of 67 records are known from data study (second)") for t in spent.told), spent.told
    assert any("data_name = study" in t and "sordino ledger distinct other study" in t for t in spent.told)
    seen = "".join(
        p.read_text() for p in (result.folder / "public").iterdir() if p.suffix in (".json", ".jsonl", ".toml")
    )
    assert not any(word in seen for word in ("known from", "unnamed", "study", "distinct"))
    with monkeypatch.context() as patch:  # elsewhere, where nothing is known, the public files are the same
        patch.setenv("SORDINO_HOME", str(tmp_path / "elsewhere"))
        alone = spent(part, "part.csv", epsilon=0.001, data_name="other", name="third", out="apart")
        assert spent.told == []
    for name in ("plan.json", "result.json"):
        one, other = (json.loads((r.folder / "public" / name).read_text()) for r in (result, alone))
        assert one == other
    one, other = (json.loads((r.folder / "private" / "ledger.json").read_text()) for r in (result, alone))
    assert one.keys() == other.keys() and {one["data"], other["data"]} == {"other"}
    assert not any("known" in note for note in result.notes)
    assert capfd.readouterr() == ("", "")  # the callback has them all


@pytest.mark.parametrize("terminal", [False, True])
def test_without_a_callback_it_goes_to_a_terminal_and_to_the_private_notes(terminal, study, capsys, monkeypatch):
    """What is redirected may be handed on, so it says nothing of whose data these are."""
    study(people())
    wanted = spec.from_dict(KEYS | {"dataset": "data.csv", "schema": "all.toml"})
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    result = execute(build.from_spec(wanted), own_model=False)
    told = capsys.readouterr()
    assert told.out == "" and (told.err != "") == terminal
    if terminal:
        assert "\nsordino: 60 of 60 records are known" in told.err and "data_name" in told.err
    columns, known = result.private.notes
    assert columns.endswith("left out: ward.") and known.startswith("60 of 60 records are known")
    assert "60 of 60 records are known" in (result.folder / "private" / "notes.txt").read_text()


def test_a_grown_table_under_one_name_is_charged_to_those_who_were_there(study):
    """Whoever joined later has paid less: with only the newcomers a whole budget is left."""
    study(people(), data_name="study")
    set_budget(1.5, "study")
    with pytest.raises(BudgetError, match="on data study"):
        study(pd.concat([people(), people(8, 20)]), data_name="study")
    study(people(8, 20), data_name="study")
    assert study.told == []
    with pytest.raises(BudgetError):
        study(people(8, 20), data_name="study")


def test_the_budget_of_a_name_holds_for_whoever_is_in_those_data(study):
    study(people(), data_name="study")
    set_budget(1.5, "study")
    study(people(4), "free.csv")  # no budget for others
    study(people(4), "free.csv")
    with pytest.raises(BudgetError, match=r"left: epsilon 0\.5"):
        study(pd.concat([people(4), people().iloc[:2]]), "mixed.csv", data_name="mixed")


def test_data_that_are_declared_distinct_do_not_count_together(study, sordino_command, tmp_path):
    study(people(), data_name="clinic")
    set_budget(1.5)
    mine = {"file": "twins.csv", "data_name": "twins"}
    with pytest.raises(BudgetError, match="sordino ledger distinct twins clinic"):
        study(people(), **mine)
    done = sordino_command("ledger", "distinct", "twins", "clinic", cwd=tmp_path)
    assert done.returncode == 0 and "different people" in done.stdout, done.stderr
    study(people(), **mine)
    assert study.told == []
    with pytest.raises(BudgetError):
        study(people(), **mine)  # their own budget is spent
    for bad in (("a b", "clinic"), ("clinic", "clinic"), ("x", "y")):
        done = sordino_command("ledger", "distinct", *bad, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


# --- too little to tell people apart


def answers(seed, rows=80):
    draw = np.random.default_rng(seed)
    found = pd.DataFrame(draw.integers(0, 2, size=(rows, 6)), columns=list("abcdef"))
    return found.assign(sick=draw.integers(0, 2, rows))


def test_a_table_of_few_different_rows_counts_by_its_name_only(study):
    keys = {"schema": None}
    study(answers(0), **keys)
    (text,) = study.told
    assert "only the name counts" in text and "too alike" in text and "data_name" in text
    set_budget(1.5)
    with pytest.raises(BudgetError):
        study(answers(0), **keys)  # exactly the same table is still the same
    study(answers(1), **keys)  # other people gave the same answers
    study(answers(0).iloc[1:], "less.csv", **keys)
    study(answers(0), "named.csv", data_name="survey", **keys | {"epsilon": 0.5})
    with pytest.raises(BudgetError, match="data survey"):
        study(answers(7), "next.csv", data_name="survey", **keys | {"epsilon": 1.2})


def test_clients_made_when_asked_for_count_by_their_name_only(capfd, tmp_path):
    def lazy(shift):
        pair = federation((12,))[0]
        return LazyClients(9, 12, lambda i: (pair[0] + i + shift, pair[1]))

    keys = {"epsilon": 1.0, "rounds": 1, "device": "cpu", "method": "dp-fedavg", "out": str(tmp_path)}
    told = []
    sordino.train(mlp(), lazy(0.0), owner=told.append, **keys)
    assert "only the name counts" in told[0] and capfd.readouterr() == ("", "")
    set_budget(1.5)
    with pytest.raises(BudgetError):
        sordino.train(mlp(), lazy(0.0), **keys)
    sordino.train(mlp(), lazy(0.5), data_name="made", **keys)
    with pytest.raises(BudgetError, match="data made"):
        sordino.train(mlp(), lazy(0.7), data_name="made", **keys)


# --- users and clients


def visits(seed, who):
    draw = np.random.default_rng(seed)
    found = pd.DataFrame(draw.normal(50, 12, size=(len(who), 4)).round(3), columns=COLUMNS)
    return found.assign(patient=who, sick=draw.integers(0, 2, len(who)))


BY_USER = {"unit": "user", "user_column": "patient", "records_per_user": 2}


def test_a_user_is_known_by_id_though_every_row_is_new(study):
    names = [f"{name:010d}" for name in np.random.default_rng(0).integers(0, 10**10, 20)]
    study(visits(0, names * 2), **BY_USER)
    set_budget(1.5)
    others = [f"{name:010d}" for name in np.random.default_rng(1).integers(0, 10**10, 20)]
    study(visits(1, others * 2), "others.csv", **BY_USER)
    with pytest.raises(BudgetError, match="1 of 21 users"):
        study(visits(2, [*others, names[3]] * 2), "third.csv", **BY_USER)
    study(visits(3, others * 2), "more.csv", **BY_USER | {"epsilon": 0.5})


def test_users_that_are_merely_numbered_are_known_within_one_name(study):
    numbers = [str(i) for i in range(20)]
    study(visits(0, numbers * 2), **BY_USER)
    assert any("identify nobody outside this table" in t for t in study.told)
    set_budget(1.5)
    study(visits(1, numbers * 2), "another-clinic.csv", **BY_USER)  # other people with the same numbers
    with pytest.raises(BudgetError):
        study(visits(0, [f"p{i}" for i in numbers] * 2), "renamed.csv", **BY_USER)  # the same rows
    study(visits(2, numbers * 2), "named.csv", data_name="cohort", **BY_USER)
    with pytest.raises(BudgetError, match="data cohort"):
        study(visits(3, numbers[:5] * 2), "next.csv", data_name="cohort", **BY_USER)
    study(visits(4, [str(i) for i in range(100, 120)] * 2), "new.csv", data_name="cohort", **BY_USER)


@pytest.mark.parametrize("named", [False, True])
def test_clients_of_a_dict_are_known_by_their_keys(named, tmp_path, capfd):
    ids = [f"hospital-{i:016x}" for i in np.random.default_rng(3).integers(0, 2**62, 6)]

    def clients(seed, keys):
        pairs = federation((12,) * 6, seed)
        return dict(zip(keys, pairs, strict=True)) if named else pairs

    keys = {"method": "dp-fedavg", "epsilon": 1.0, "rounds": 1, "device": "cpu", "out": str(tmp_path)}
    sordino.train(mlp(), clients(0, ids), **keys)
    set_budget(1.5)
    if named:
        with pytest.raises(BudgetError, match="6 of 6 clients"):
            sordino.train(mlp(), clients(1, ids), **keys)  # new records of the same hospitals
    else:
        sordino.train(mlp(), clients(1, ids), **keys)  # numbers name nobody
    with pytest.raises(BudgetError):
        sordino.train(mlp(), clients(0, [f"x{i}" for i in ids]), **keys)  # the same records


# --- where things are written


def test_a_run_writes_into_its_home_and_its_folder_only(tmp_path, monkeypatch):
    for name in ("user", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user" / "data"))
    monkeypatch.chdir(tmp_path / "work")
    sordino.train(mlp(), federation(), rounds=1, device="cpu", name="it")
    assert list((tmp_path / "user").iterdir()) == []
    assert [str(p.relative_to(tmp_path / "work")) for p in (tmp_path / "work").glob("*/*")] == ["runs/it"]
    base = registry().parent.parent
    assert {p.name for p in base.rglob("*") if p.is_file()} == {"ledger.sqlite", "units.sqlite", "units.key"}
    assert (base / "keys" / "units.key").stat().st_mode & 0o777 == 0o600
    assert {p.stat().st_mode & 0o777 for p in (base / "keys", base / "registry")} == {0o700}
    monkeypatch.delenv("SORDINO_HOME")
    assert home.folder() == tmp_path / "user" / "data" / "sordino"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert home.folder() == tmp_path / "user" / ".local" / "share" / "sordino"


def test_a_home_that_cannot_be_written_is_one_clear_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(RunError, match="SORDINO_HOME") as error:
        sordino.train(mlp(), federation(), rounds=1, device="cpu", out=str(tmp_path / "runs"))
    assert "\n" not in str(error.value) and not (tmp_path / "runs").exists()


# --- what a run says of those before it


def test_a_name_adds_up_in_public_and_nothing_else_does(study):
    first = study(people(), data_name="study")
    second = study(people(1), data_name="study", epsilon=2.0)  # the sum is over plans, whoever was in them
    told = json.loads((second.folder / "public" / "result.json").read_text())["together"]
    assert told == second.together
    assert told.startswith("run 2 on these data (study), together epsilon 3, delta 2e-05 for a record"), told
    assert first.together.startswith("run 1 on these data (study), together epsilon 1, delta 1e-05")
    assert study(people(), "unnamed.csv").together is None
    plain = study(people(), data_name="study", method="none")
    assert plain.together is not None and "epsilon 3" in plain.together and "no such guarantee: 1" in plain.together


def test_new_pseudonyms_are_the_same_people(study, tmp_path):
    """Also where a column of text stands in the table, which has no order of size."""
    table = people().assign(site=["north", "south", "east"] * 20, who=[f"patient-{i:012x}" for i in range(60)])
    text = (tmp_path / "all.toml").read_text() + '[site]\nvalues = ["north", "south", "east"]\n'
    (tmp_path / "sites.toml").write_text(text)
    keys = {"unit": "user", "user_column": "who", "schema": "sites.toml"}
    study(table, "old.csv", **keys)
    set_budget(1.5)
    with pytest.raises(BudgetError, match=r"left: epsilon 0\.5"):
        study(table.assign(who=[f"person-{7 * i:012x}" for i in range(60)]), "new.csv", **keys)


@pytest.mark.parametrize("gone", ["units.sqlite", "ledger.sqlite", "an empty ledger"])
def test_half_a_registry_stops_a_run(gone, study):
    """Else everyone would start from nothing, and nobody would be told."""
    study(people())
    path = home.registry()
    if gone == "an empty ledger":
        path.write_bytes(b"")
    else:
        path.with_name(gone).unlink()
    with pytest.raises(RunError, match=r"is gone.*sordino ledger restore"):
        study(people(), "again.csv")
