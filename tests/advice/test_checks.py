"""Every rule of `sordino check`: a configuration that triggers it, and one that does not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from sordino.advice import case, checks, ledger_rules
from sordino.advice.finding import SEVERITIES
from sordino.core.errors import DataError, RunError
from sordino.data.clients import adopt
from sordino.ledger import home
from sordino.ledger.ledger import Budget, Ledger
from sordino.runs import build, run
from sordino.runs.prepare import with_users
from sordino.spec import spec
from support.problems import FEATURES, federation, held_out, linear

SECURE = {"mode": "secure", "rounds": 3, "learning_rate": 0.5}
LASTING = Path("/home/someone/ledger.sqlite")


def parts(module=None, clients=None, test=None, **keys):
    """A case on the small federation, private and in order unless the keys say otherwise."""
    made = case.of_parts(
        spec.from_dict(SECURE | keys), module or linear(), federation() if clients is None else clients, None, test
    )
    return replace(made, ledger=LASTING)


def files(folder, **keys):
    """A case as a run file has it, on small.npz unless the keys say otherwise."""
    keys = {"dataset": "small.npz", "data_dir": str(folder), "features": "none", "clients": 8} | SECURE | keys
    return case.of_spec(spec.from_dict(keys))


def of_users(method, **keys):
    """A case of 32 users with three records each in one of 8 clients."""
    wanted = spec.from_dict(SECURE | {"method": method, "unit": "user"} | keys)
    clients, _ = with_users(adopt(federation()), [np.arange(12) // 3 + 4 * k for k in range(8)], wanted)
    return case.of_parts(wanted, linear(), clients)


def found(rule, one):
    """What one rule says, and that the whole list has it too."""
    alone = list(rule(one))
    assert [replace(f, rule=rule.__name__) for f in alone] == [f for f in checks.check(one) if f.rule == rule.__name__]
    assert all(f.severity in SEVERITIES and f.found and f.why and f.fix for f in alone)
    return alone


def only(rule, one, severity, *words):
    (it,) = found(rule, one)
    assert it.severity == severity
    for word in words:
        assert word in f"{it.found}|{it.why}|{it.fix}"


def test_every_rule_is_in_the_list_and_says_what_it_looks_at():
    assert len(set(checks.RULES)) == len(checks.RULES) >= 18
    assert all(len(text) > 10 for text in checks.looked_at().values())
    tested = Path(__file__).read_text()
    assert not [r.__name__ for r in checks.RULES if f"checks.{r.__name__}" not in tested]


# --- what is protected, from whom


def test_no_noise():
    only(checks.no_noise, parts(method="none"), "broken", "none adds no noise", "infinite", "dp-sgd")
    assert not found(checks.no_noise, parts())


def test_unprotected_viewer():
    asked = parts(method="dp-fedavg", viewer="server")
    only(checks.unprotected_viewer, asked, "broken", "against the server", "infinite", "viewer = public")
    assert not found(checks.cannot_start, asked)  # told already
    only(checks.unprotected_viewer, parts(method="dp-fedavg"), "note", "not against the server")
    assert not found(checks.unprotected_viewer, parts())
    assert not found(checks.unprotected_viewer, parts(viewer="public"))  # dp-sgd holds against both


def test_one_record_is_not_a_person():
    only(checks.one_record_not_a_person, parts(), "note", "one record")
    assert not found(checks.one_record_not_a_person, parts(method="dp-fedavg"))


def test_made_up_clients(small_npz):
    only(
        checks.made_up_clients,
        files(small_npz.parent, method="dp-fedavg"),
        "note",
        "split among 8 clients by iid",
        "client_train",
    )
    held = dict(np.load(small_npz))
    np.savez(small_npz, **held, client_train=np.arange(96) // 12)
    assert not found(checks.made_up_clients, files(small_npz.parent, method="dp-fedavg"))
    assert not found(checks.made_up_clients, files(small_npz.parent))


# --- epsilon, delta, seeds


def test_seeds():
    only(checks.seeds, parts(mode="research"), "broken", "default seed 0", "subtract", "mode = secure")
    only(checks.seeds, parts(mode="research", seed=123_456), "broken", "seed = 123456")
    only(checks.seeds, parts(mode="research", seed=2**50 + 12345), "weak", "void")
    only(checks.seeds, parts(mode=None, seed=7), "broken", "seed = 7", "for your own data the default is mode = secure")
    assert not found(checks.seeds, parts()) and not found(checks.seeds, parts(mode=None))
    assert not found(checks.seeds, parts(method="none", mode="research"))


def test_delta_is_compared_with_the_number_of_protected_units():
    only(checks.delta_too_large, parts(delta=0.011), "broken", "96 records")  # 8 clients of 12
    assert not found(checks.delta_too_large, parts(delta=0.01))
    only(checks.delta_too_large, parts(method="dp-fedavg", delta=0.125), "broken", "8 clients")
    assert not found(checks.delta_too_large, parts(method="dp-fedavg", delta=0.12))


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_delta_is_compared_with_the_number_of_users(method):
    """32 users of three records each: neither the 96 records nor the 8 clients count."""
    only(checks.delta_too_large, of_users(method, delta=1 / 32), "broken", "32 users")
    assert not found(checks.delta_too_large, of_users(method, delta=1 / 33))


def test_a_large_epsilon():
    only(checks.epsilon_large, parts(epsilon=10.5), "weak", "epsilon = 10.5", "99.99 %")
    assert not found(checks.epsilon_large, parts(epsilon=10.0))


def test_float_noise():
    assert not found(checks.float_noise, parts())  # exact
    only(checks.float_noise, parts(method="udp-fl", mechanism="laplace"), "note", "floating point", "Mironov")
    only(checks.float_noise, parts(method="fed-cdp"), "note", "not known in advance", "Mironov")
    assert not found(checks.float_noise, parts(mode="research"))


# --- the model


def norm(layer):
    return nn.Sequential(nn.Linear(FEATURES, 6), layer, nn.Linear(6, 3))


def test_layers_that_mix_records_are_named_with_what_would_be_changed():
    bad = parts(norm(nn.BatchNorm1d(6)))
    only(checks.layers, bad, "broken", "1 is BatchNorm1d", "1: BatchNorm1d -> GroupNorm(1, 6)")
    assert not found(checks.cannot_start, bad)
    assert not found(checks.layers, parts(norm(nn.BatchNorm1d(6)), fix_model=True))
    assert not found(checks.layers, parts(norm(nn.LayerNorm(6))))


class Centred(nn.Module):
    """Mixes records without any layer that is known to."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, 3)

    def forward(self, x):
        return self.layer(x - x.mean(dim=0))


def test_mixing_is_found_by_behaviour_too():
    only(checks.layers, parts(Centred()), "broken", "depends on the other records")
    only(checks.layers, parts(Centred(), fix_model=True), "broken", "change the model")


class Counting(nn.Module):
    def __init__(self, moves):
        super().__init__()
        self.layer, self.moves = nn.Linear(FEATURES, 3), moves
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        if self.training and self.moves:
            self.seen += len(x)
        return self.scale * self.layer(x)


def test_whole_number_buffers_and_scalar_parameters():
    only(checks.layers, parts(Counting(True)), "broken", "buffer seen (torch.int64) changes")
    still = parts(Counting(False))
    assert not found(checks.layers, still)
    buffer, scalar = found(checks.kept_tensors, still)
    assert "seen" in buffer.found and "scale" in scalar.found and {buffer.severity, scalar.severity} == {"note"}
    assert not found(checks.kept_tensors, parts())
    frozen = linear()
    frozen.bias.requires_grad_(False)
    only(checks.kept_tensors, parts(frozen), "note", "bias")


# --- the data


def write(folder, x, y=None, test=None, name="small.npz"):
    y = np.arange(len(x)) % 3 if y is None else y
    test = np.random.default_rng(9).normal(size=x.shape)[:40] if test is None else test
    np.savez(folder / name, x_train=x, y_train=y, x_test=test, y_test=y[: len(test)])


def scaled(x, how):
    return {
        "raw": x * 3 + 1,
        "chance": x,  # drawn with mean 0 and deviation 1: not exactly so in the sample
        "standard": (x - x.mean(0)) / x.std(0),
        "bessel": (x - x.mean(0)) / x.std(0, ddof=1),
        "whole": (x - x.mean()) / x.std(),
        "range": (x - x.min(0)) / (x.max(0) - x.min(0)),
        "pictures": np.round(255 / (1 + np.exp(-9 * x))) / 255,
        "flags": (x > 0).astype(float),
        "one-hot": one_hot(x),
        "levels": np.concatenate([x[:, :2] * 3 + 1, np.round(4 / (1 + np.exp(-x[:, 2:]))) / 4], 1),
        "signs": np.concatenate([x[:, :1] * 3 + 1, np.where(np.arange(len(x)) % 2, 1.0, -1.0)[:, None]], 1),
        "one-hot beside standard": np.concatenate(
            [one_hot(x)[:, 1:], (x[:, :1] - x[:, :1].mean()) / x[:, :1].std()], 1
        ),
    }[how]


def one_hot(x):
    """As a schema encodes a table: one number, clamped to declared bounds and scaled to [-1, 1], and categories."""
    number = np.clip(x[:, :1] / 3, -1, 1)
    return np.concatenate([number, *(np.eye(4)[np.digitize(column, (-1, 0, 1))] for column in x[:, 1:4].T)], 1)


@pytest.mark.parametrize("how", ["standard", "bessel", "whole", "range", "one-hot beside standard"])
def test_statistics_fitted_on_the_training_records(how, tmp_path):
    write(tmp_path, scaled(np.random.default_rng(1).normal(size=(400, FEATURES)), how))
    only(checks.fitted_statistics, files(tmp_path), "weak", "statistics of the training records", "public constants")


@pytest.mark.parametrize("how", ["raw", "chance", "pictures", "flags", "one-hot", "levels", "signs"])
def test_data_that_were_not_fitted(how, tmp_path):
    write(tmp_path, scaled(np.random.default_rng(1).normal(size=(400, FEATURES)), how))
    assert not found(checks.fitted_statistics, files(tmp_path))


def test_test_records_that_are_training_records(tmp_path):
    x = np.random.default_rng(1).normal(size=(200, FEATURES))
    write(tmp_path, x, test=x)
    only(checks.metrics_in_clear, files(tmp_path), "broken", "200 of 200", "without noise")
    other = np.random.default_rng(2).normal(size=(40, FEATURES))
    write(tmp_path, x, test=np.concatenate([x[:1], other[1:]]))
    only(checks.metrics_in_clear, files(tmp_path), "broken", "1 of 40")
    write(tmp_path, x, test=other)
    only(checks.metrics_in_clear, files(tmp_path), "note", "taken as public")


def test_records_of_few_values_may_repeat_by_chance(tmp_path):
    x = np.random.default_rng(1).integers(0, 2, size=(300, 4)).astype(float)
    write(tmp_path, x, y=np.zeros(300, dtype=int), test=np.concatenate([x[:5], x[:15] + 7]))
    only(checks.metrics_in_clear, files(tmp_path), "weak", "5 of 20", "chance")


def test_own_clients_and_test_data_are_compared_too():
    only(checks.metrics_in_clear, parts(test=federation()[0]), "broken", "12 of 12")
    only(checks.metrics_in_clear, parts(test=held_out(seed=3)), "note", "60 test records")
    assert not found(checks.metrics_in_clear, parts())  # nothing to publish


def visits(folder, users, part=None, rows=240):
    """A table of people and sites; `part` says which rows are test records."""
    i = np.arange(rows)
    columns = {"a": i, "y": i % 2, "who": i % users, "site": i % users % 4}
    columns |= {} if part is None else {"part": np.where(part(i), "test", "train")}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    roles = {"label_column": "y", "user_column": "who", "client_column": "site"}
    return roles | {"dataset": "visits.csv"} | ({} if part is None else {"split_column": "part"})


def test_records_and_values_that_are_left_out(tmp_path):
    """Once two thirds of the records went in silence, and users were counted as records."""
    i = np.arange(360)
    rows = [f"{a},{a % 2},u{a % 30},{a % 30 % 7 if a < 200 else a % 11}" for a in i]
    (tmp_path / "visits.csv").write_text("a,y,who,site\n" + "\n".join(rows) + "\n")
    keys = {"dataset": "visits.csv", "label_column": "y", "user_column": "who", "unit": "user"}
    several = files(tmp_path, **keys, client_column="site")
    left = 360 - several.records
    assert left > 120
    only(checks.left_out, several, "note", f"{left} of 360 records", "clients_per_user = 1", "owner of the data alone")
    only(checks.public_sizes, several, "note", " users|how many users each client has")
    assert several.users == 30 and sum(several.job.federation.facts.users) == 30
    assert not found(checks.left_out, files(tmp_path, **keys, client_column="site", clients_per_user=11))
    dealt = files(tmp_path, **keys, clients=8)  # made-up clients get whole users
    assert not found(checks.left_out, dealt) and dealt.records == 360
    dealt = files(tmp_path, **keys, clients=8, partition="quantity:1")
    only(checks.left_out, dealt, "note", "of 360 records", "client_column")
    by_record = files(tmp_path, **{k: v for k, v in keys.items() if k != "unit"}, client_column="site")
    only(checks.public_sizes, by_record, "note", "records|how many records each client has")


def test_people_with_public_and_private_records(tmp_path):
    keys = visits(tmp_path, 40, lambda i: i % 7 == 0)
    mixed = files(tmp_path, **keys, unit="user")
    only(checks.partly_public, mixed, "broken", "35 of 40 users have both test records", "split by whole users")
    fed = files(tmp_path, **keys, method="dp-fedavg")
    only(checks.partly_public, fed, "broken", "4 of 4 clients have both test records")
    assert not found(checks.partly_public, files(tmp_path, **keys))  # the unit is a record
    assert not found(checks.partly_public, files(tmp_path, **keys, method="dp-fedavg", partition="iid"))  # made up
    assert not found(checks.partly_public, files(tmp_path, **keys, unit="user", public_data=True))
    keys = visits(tmp_path, 40, lambda i: i % 40 < 4)  # four people, with all that they have
    assert not found(checks.partly_public, files(tmp_path, **keys, unit="user"))
    keys = visits(tmp_path, 40)
    shared = files(tmp_path, **keys, unit="user", public_share=0.3)
    assert not found(checks.partly_public, shared) and len(shared.data.y_test)
    (tmp_path / "shown.csv").write_text("a,y\n1,0\n2,1\n")
    only(checks.partly_public, files(tmp_path, **keys, unit="user", test="shown.csv"), "weak", "do not say which user")


def test_what_is_declared_public(tmp_path):
    keys = visits(tmp_path, 40)
    shared = files(tmp_path, **keys, unit="user", public_share=0.3)
    only(checks.declared_public, shared, "note", "all those of some users", "nobody is charged")
    only(checks.declared_public, files(tmp_path, **keys, public_data=True), "note", "public_data = true")
    assert not found(checks.declared_public, files(tmp_path, **keys))


def test_private_records_dealt_by_label(tmp_path):
    keys = visits(tmp_path, 40)
    for law in ("dirichlet:0.5", "shards:2"):
        dealt = files(tmp_path, **keys, partition=law)
        only(checks.dealt_by_label, dealt, "broken", "which are private here", "public_data = true")
        assert dealt.job is None and not found(checks.cannot_start, dealt)  # said once
        assert not found(checks.dealt_by_label, files(tmp_path, **keys, partition=law, public_data=True))
    assert not found(checks.dealt_by_label, files(tmp_path, **keys, partition="quantity:2"))


def test_a_run_that_can_show_no_figure(tmp_path):
    keys = visits(tmp_path, 40)
    only(checks.no_evaluation, files(tmp_path, **keys, unit="user"), "note", "a deviation of", "test = PATH", "users")
    assert not found(checks.no_evaluation, files(tmp_path, **keys, public_share=0.2))
    assert not found(checks.no_evaluation, files(tmp_path, **keys, epsilon=9.0, validation=0.5))
    assert not found(checks.no_evaluation, parts())  # from Python nothing is held out unasked


def test_baseline(small_npz):
    only(checks.baseline, files(small_npz.parent, baseline=True), "broken", "without any noise", "drop baseline")
    assert not found(checks.baseline, files(small_npz.parent))


def test_unequal_weights_and_sizes():
    only(checks.public_sizes, parts(method="dp-fedavg", weight_cap=10.0), "note", "weight_cap = 10")
    only(checks.public_sizes, parts(clients=federation((5, 9, 30))), "note", "5 to 30 records")
    assert not found(checks.public_sizes, parts())


def test_single_records():
    only(checks.single_records, parts(clients=federation((1, 9, 30))), "note", "single record")
    assert not found(checks.single_records, parts(clients=federation((2, 9, 30))))
    assert not found(checks.single_records, parts(clients=federation((1, 9, 30)), method="dp-fedavg"))


# --- rounds, draws, budgets


def test_draws_of_a_fixed_size():
    fixed = {"client_sampling": "fixed", "method": "dp-fedavg"}
    only(checks.draws, parts(**fixed, client_rate=0.5), "note", "client_sampling = fixed", "replace-one")
    assert not found(checks.draws, parts(**fixed))  # all of them: nothing is drawn
    only(checks.draws, parts(batch_sampling="fixed", batch_rate=0.5), "note", "batch_sampling = fixed")
    assert not found(checks.draws, parts(batch_rate=0.5))


def test_every_round_is_paid_without_a_cap():
    rare = {"client_rate": 0.1, "rounds": 100}
    only(checks.every_round_paid, parts(**rare), "note", "all 100 rounds", "10 are expected", "max_participations = 17")
    assert not found(checks.every_round_paid, parts(**rare, max_participations=17))
    assert not found(checks.every_round_paid, parts(**rare, viewer="public"))
    assert not found(checks.every_round_paid, parts(rounds=100))


def test_the_ledger_and_its_budget(tmp_path, monkeypatch):
    path = tmp_path / "ledger.sqlite"
    monkeypatch.setattr(ledger_rules, "_temporary", lambda: [tmp_path])
    here = replace(parts(), ledger=path)
    assert [f.severity for f in found(checks.ledger, here)] == ["weak", "note"]
    only(checks.ledger, parts(), "note", "no budget", "sordino ledger budget")
    book = Ledger(path)
    book.set_budget(Budget(3.0, 1e-5, "plans", None))
    book.close()
    only(checks.ledger, here, "weak", "temporary")
    monkeypatch.setattr(ledger_rules, "_temporary", list)
    assert not found(checks.ledger, here)
    assert not found(checks.ledger, replace(parts(method="none"), ledger=path))
    path.write_text("torn")
    only(checks.ledger, here, "note", "no budget")  # no stack trace


def test_temporary_folders_are_known(tmp_path):
    assert any((tmp_path / "x").resolve().is_relative_to(t) for t in ledger_rules._temporary())
    assert not any(LASTING.is_relative_to(t) for t in ledger_rules._temporary())


def test_hopeless_noise_asks_the_planner():
    only(checks.usefulness, parts(method="dp-fedavg", epsilon=0.1), "weak", "hopeless", "8 clients", "sordino plan")
    assert not found(checks.usefulness, parts(clients=federation((400,) * 20), epsilon=8.0))
    assert not found(checks.usefulness, parts(method="none"))


def test_the_ratio_counts_local_steps():
    one, four = (parts(clients=federation((50,) * 4), local_steps=k, epsilon=1.0) for k in (1, 4))
    assert four.nsr() == pytest.approx(one.nsr(), rel=1e-3)  # twice the noise in each of four times the steps
    assert parts(method="none").nsr() is None


def test_what_cannot_be_seen_is_said(small_npz):
    only(checks.unseen_choices, files(small_npz.parent), "note", "cannot be seen")
    assert not found(checks.unseen_choices, parts(method="none"))


def test_a_run_that_would_not_start():
    only(checks.cannot_start, parts(batch_size=1000), "broken", "would not start", "batch_size 1000")
    only(checks.cannot_start, parts(epsilon=1e-7, delta=1e-9), "broken", "no noise multiplier")
    assert not found(checks.cannot_start, parts())


# --- whole cases


def test_a_sound_configuration_has_notes_only():
    clients = federation((400,) * 20)
    good = parts(clients=clients, test=held_out(seed=5), epsilon=4.0)
    assert {f.severity for f in checks.check(good)} == {"note"}


def test_the_worst_comes_first():
    found = [f.severity for f in checks.check(parts(method="dp-fedavg", viewer="server", epsilon=50.0))]
    assert found == sorted(found, key=SEVERITIES.index) and found[0] == "broken" and "weak" in found


def test_the_plan_of_a_file_is_that_of_the_run(small_npz):
    """Records stand in by number: sizes, noise and model must still be those of the real job."""
    from sordino.runs import build

    for keys in ({}, {"clients": 7, "method": "dp-fedavg", "client_rate": 0.5}):
        made = files(small_npz.parent, **keys)
        assert made.problem is None and made.records == 96
        assert made.job.plan == build.from_spec(replace(made.spec, device="cpu")).plan


def test_a_finished_run_is_checked_by_its_folder(small_npz, monkeypatch):
    keys = {"dataset": "small.npz", "features": "none", "clients": 8, "rounds": 2, "device": "cpu", "mode": "research"}
    monkeypatch.chdir(small_npz.parent)
    from sordino.runs import build
    from sordino.runs.run import execute

    done = execute(build.from_spec(spec.from_dict(keys | {"name": "it"})), own_model=False)
    it = case.of_run(done.folder)
    assert it.data is not None and it.job is not None and it.ledger.is_file()
    only(checks.seeds, it, "broken", "seed 0")
    (small_npz).unlink()
    gone = case.of_run(done.folder)
    assert gone.data is None and gone.clients == 8
    only(checks.seeds, gone, "broken", "seed 0")


def test_a_run_from_python_is_checked_without_its_model(tmp_path):
    done = sordino.train(linear(), federation(), rounds=1, out=str(tmp_path / "runs"), device="cpu", delta=0.2,
                         method="dp-fedavg")  # fmt: skip
    it = case.of_run(done.folder)
    assert it.data is None and it.module is None and it.clients == 8
    only(checks.delta_too_large, it, "broken", "8 clients")


def test_a_damaged_or_missing_run_is_one_line(tmp_path):
    with pytest.raises(RunError, match="no run folder"):
        case.of_run(tmp_path / "none")
    (tmp_path / "plan.json").write_text("[]")
    (tmp_path / "ledger.json").write_text("{}")
    (tmp_path / "spec.toml").write_text("rounds = 1\n")
    with pytest.raises(RunError, match="damaged"):
        case.of_run(tmp_path)


def test_data_that_cannot_be_read_is_one_line(small_npz):
    with pytest.raises(DataError, match="no dataset"):
        files(small_npz.parent, dataset="none.npz")
    with pytest.raises(DataError, match="uint8"):
        files(small_npz.parent, features="scattering")
    with pytest.raises(DataError, match="cannot give"):
        files(small_npz.parent, clients=1000)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_users_can_be_checked(method):
    made = of_users(method)
    assert made.problem is None and made.cost().unit == "user"
    assert [f for f in checks.check(made) if f.severity == "broken"] == []


# --- the ledger


def test_data_without_a_name_and_people_who_are_known_are_found_before_a_run(tmp_path, monkeypatch):
    """As runs: the same table once more, and once more under a budget that does not pay for it."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = [",".join(f"{v:.9g}" for v in draw.normal(size=6)) + f",{i % 2}" for i in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,d,e,f,y", *rows]) + "\n")
    keys = {"dataset": "t.csv", "label_column": "y", "clients": 4, "rounds": 1, "epsilon": 1.0, "device": "cpu"}
    wanted = spec.from_dict(keys)

    (unnamed,) = found(checks.unnamed_data, case.of_spec(wanted))
    assert "data_name" in unnamed.fix and not found(checks.spent_already, case.of_spec(wanted))
    run.execute(build.from_spec(wanted), own_model=False)
    (known,) = found(checks.spent_already, case.of_spec(wanted))
    assert known.severity == "weak" and "80 of 80 records are known" in known.found
    book = Ledger(home.registry())
    book.set_budget(Budget(1.5, 1e-4, "plans", None))
    book.close()
    (refused,) = found(checks.spent_already, case.of_spec(wanted))
    assert refused.severity == "broken" and "the budget is epsilon 1.5" in refused.found
    named = spec.from_dict(keys | {"data_name": "mine"})
    assert not found(checks.unnamed_data, case.of_spec(named))


def test_the_records_of_an_earlier_version_are_told_to_show_the_draw(tmp_path):
    (tmp_path / "plan.json").write_text('{"clients": 8, "own": true}')
    (tmp_path / "ledger.json").write_text('{"path": "../ledger.sqlite"}')
    for rate, times in ((0.2, 1), (1.0, 0)):
        (tmp_path / "spec.toml").write_text(f'method = "dp-fedavg"\nclient_rate = {rate}\n')
        assert len(found(checks.no_public_part, case.of_run(tmp_path))) == times
