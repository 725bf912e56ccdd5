"""Sites under a policy and Flower apps with training code of their own: what trains, what leaves, what is refused."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.cli.install import install_from_fab
from flwr.supercore.task_identity import TaskIdentity
from tests.support.sites import OPEN, roster_of

from sordino.core.errors import RunError, SpecError
from sordino.deploy.daemon import SiteDaemon
from sordino.deploy.policy import Policy
from sordino.deploy.reviewed import AppMod, ReviewedApp, bundle, digest_of, packed_files, reviewed
from sordino.deploy.site import FAILED, FederationSite
from sordino.deploy.site_account import read_ledger
from sordino.deploy.site_data import SiteData
from sordino.deploy.site_foreign import ForeignApps
from sordino.foreign import child, client, digest, frames, site_line
from sordino.foreign.client import PrivateMod, private_mod
from sordino.foreign.request import Named, TrainRequest
from sordino.foreign.terms import RunTerms
from sordino.ledger.charges import Charge
from sordino.ledger.ledger import Ledger
from sordino.masking.identity import SIGNATURE
from sordino.privacy.events import Cost, GaussianEvent

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "flower_app"
APP = "a" * 64
TERMS = RunTerms("a1", 4, 3, 1.0, 2.0, 1e-5)  # one participation costs epsilon 1.99, three cost 3.71
RULES = replace(OPEN, methods=("foreign",), units=("client",), viewers=("public",), foreign_apps=(APP,))
PROJECT = (EXAMPLE / "after" / "pyproject.toml").read_text()
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sordino.flower import private_mod

app = ClientApp(mods={mods})

@app.train()
def train(message, context):
    ages = np.loadtxt(context.node_config["data"], delimiter=",")
    print("the first age is", ages[0])
    {line}
    received = message.content["arrays"]
    step = context.run_config["rate"] * message.content["config"]["scale"] * context.node_config["factor"]
    moved = {{name: np.asarray(received[name].numpy() + np.float32(step * ages.mean())) for name in received}}
    new = ArrayRecord({{name: Array(value) for name, value in moved.items()}})
    metrics = MetricRecord({{"num-examples": len(ages), "first": float(ages[0])}})
    return Message(RecordDict({{"arrays": new, "metrics": metrics}}), reply_to=message)
"""


@pytest.fixture(autouse=True)
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the identity that Flower gives to the processes of an app, and a home of its own."""
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "home"))
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Copy:
    """A copy of an app that trains in this process."""

    def __init__(self, step: float = 10.0, mod: AppMod = AppMod(1.0, True)) -> None:  # noqa: B008 (it is frozen)
        self.digest, self._mod, self.step = APP, mod, step
        self.asked: list[tuple[TrainRequest, Mapping[str, Any]]] = []

    def mod(self) -> AppMod:
        return self._mod

    def train(self, request: TrainRequest, node: Mapping[str, Any]) -> Named:
        self.asked.append((request, node))
        return {name: value + np.float32(self.step) for name, value in request.arrays.items()}


Made = Callable[..., FederationSite]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Made]:
    """Return a function that makes one site again and again, with other rules or copies of apps."""
    roster, identities = roster_of(1)
    (tmp_path / "ages.csv").write_text("71\n64\n55\n")
    made: list[FederationSite] = []

    def site(*copies: Any, policy: Policy = RULES, **config: Any) -> FederationSite:
        for old in made:
            old.close()
        holds = SiteData(str(tmp_path / "ages.csv"), tmp_path / "state")
        apps = ForeignApps(copies, config)
        made.append(FederationSite("site-1", policy, holds, roster, identities[0], tmp_path / "state", apps))
        return made[-1]

    yield site
    for old in made:
        old.close()


def arrays(value: float = 0.0) -> Named:
    return {"w": np.full(3, value, np.float32), "b": np.asarray(value, np.float32)}


def request(round: int = 1, value: float = 0.0, terms: RunTerms = TERMS, **more: Any) -> bytes:
    config = terms.config() | {"server-round": round, "scale": 2.0} | more.pop("config", {})
    asked = TrainRequest(APP, "train", ("arrays", "config"), config, {"rate": 0.5}, arrays(value))
    return replace(asked, **more).frame()


def reply(site: FederationSite, letter: bytes) -> tuple[dict[str, Any], Named]:
    return frames.unpacked(site.answer(letter)[SIGNATURE:])


def charged(site: FederationSite) -> tuple[int, int]:
    """Return how many plans and how many rounds the site's ledger holds."""
    if not (site.folder / "ledger.sqlite").exists():
        return 0, 0
    with read_ledger(site.folder) as ledger:
        return tuple(len(list(ledger.chain.select(f"kind = '{kind}'"))) for kind in ("plan", "round"))  # type: ignore[return-value]


def refused(site: FederationSite, letter: bytes) -> str:
    header, sent = reply(site, letter)
    assert not sent
    return str(header["refused"])


# --- what leaves


def test_an_allowed_app_trains_on_the_sites_data_and_only_the_clipped_update_leaves(make: Made, tmp_path: Path) -> None:
    copy = Copy()
    site = make(copy, factor=3)
    header, sent = reply(site, request())
    assert header == {} and sorted(sent) == ["0", "1"]
    update = np.concatenate([sent["0"], sent["1"].reshape(-1)])
    assert update.dtype == np.float32 and 0.9999 < np.linalg.norm(update) <= 1.0
    ((asked, node),) = copy.asked
    assert node == {"data": str(tmp_path / "ages.csv"), "factor": 3} and asked.run == {"rate": 0.5}
    assert charged(site) == (1, 1)


def test_the_whole_run_is_charged_first_by_the_sites_own_count(make: Made) -> None:
    site = make(Copy())
    reply(site, request(terms=replace(TERMS, client_rate=0.1)))  # no amplification by the server's draw
    with read_ledger(site.folder) as ledger:
        (plan,) = ledger.chain.select("kind = 'plan'")
        (round,) = ledger.chain.select("kind = 'round'")
    assert (plan.unit, plan.relation, plan.viewer, plan.data) == ("client", "add/remove", "public", "site")
    assert plan.epsilon == pytest.approx(3.709, abs=0.001) and plan.delta == 1e-5  # three rounds, z = 2
    assert (round.unit, round.viewer) == ("client", "public") and '"noise_multiplier": 2.0' in round.event


def test_a_policy_pays_for_as_many_rounds_as_it_can_if_clients_are_drawn(make: Made) -> None:
    terms = replace(TERMS, rounds=100, client_rate=0.02, noise_multiplier=5.0)  # seven rounds are likely enough
    site = make(Copy(), policy=replace(RULES, epsilon_per_job=3.0))
    answers = [reply(site, request(round, terms=terms))[0] for round in range(1, 21)]
    taken = sum(header == {} for header in answers)
    assert 7 <= taken < 20 and all("refused" in header for header in answers[taken:])
    assert charged(site) == (1, taken)


def test_an_exception_in_the_app_carries_nothing_and_the_round_is_not_paid_twice(make: Made) -> None:
    class Broken(Copy):
        def train(self, request: TrainRequest, node: Mapping[str, Any]) -> Named:
            raise ValueError("patient 4711 has a tumour")

    site = make(Broken())
    header, sent = reply(site, request())
    assert header == {"error": FAILED} and not sent
    assert "4711" in (site.folder / "log.txt").read_text()
    assert charged(site) == (1, 1)
    site = make(Copy())
    assert reply(site, request())[0] == {} and charged(site) == (1, 1)


@pytest.mark.parametrize(
    "returned",
    [
        {"w": np.ones(3, np.float32)},
        {"w": np.ones(4, np.float32), "b": np.float32(1)},
        {"w": np.ones(3, np.int64), "b": np.float32(1)},
        {"w": np.ones(3, np.float32), "b": np.float32(1), "age": np.float32(71)},
    ],
)
def test_other_arrays_than_those_received_do_not_leave(make: Made, returned: Named) -> None:
    class Other(Copy):
        def train(self, request: TrainRequest, node: Mapping[str, Any]) -> Named:
            return {name: np.asarray(value) for name, value in returned.items()}

    header, sent = reply(make(Other()), request())
    assert header == {"error": FAILED} and not sent


# --- what is refused


@pytest.mark.parametrize(
    ("copy", "rules", "letter", "why"),
    [
        (Copy(), {}, {"app": "b" * 64}, "b" * 64),
        (Copy(), {}, {"app": ""}, "does not say which it is"),
        (Copy(), {"foreign_apps": ()}, {}, f'foreign_apps = ["{APP}"]'),
        (None, {}, {}, "no copy of it"),
        (Copy(mod=AppMod(None, False)), {}, {}, "no private_mod"),
        (Copy(mod=AppMod(1.0, False)), {}, {}, "not the first"),
        (Copy(mod=AppMod(2.0, True)), {}, {}, "clips at 1; the app's private_mod clips at 2"),
        (Copy(), {}, {"terms": replace(TERMS, clip=100.0)}, "clips at 100"),
        (Copy(), {"methods": ("dp-sgd",)}, {}, "method foreign"),
        (Copy(), {"units": ("record",)}, {}, "unit client"),
        (Copy(), {"viewers": ("server",)}, {}, "viewer public"),
        (Copy(), {"channels": ("secure-sum",)}, {}, "channel direct"),
        (Copy(), {"min_cohort": 5}, {}, "4 clients"),
        (Copy(), {"delta_per_job": 1e-6}, {}, "delta"),
        (Copy(), {"epsilon_per_job": 3.5}, {}, "cost epsilon 3.709"),
        (Copy(), {"epsilon_total": 3.5}, {}, "total budget"),
        (Copy(), {}, {"terms": replace(TERMS, unit="record")}, "nobody can bound what one record does"),
        (Copy(), {}, {"round": 4}, "the run has 3 rounds"),
        (Copy(), {}, {"round": 0}, "the run has 3 rounds"),
        (Copy(), {}, {"config": {"server-round": "1"}}, "terms of a private run"),
        (Copy(), {}, {"config": {"sordino-clip": -1.0}}, "terms of a private run"),
        (Copy(), {}, {"config": {"sordino-noise_multiplier": 0.0}}, "terms of a private run"),
        (Copy(), {}, {"kind": "evaluate"}, "message for training"),
        (Copy(), {}, {"arrays": {"steps": np.zeros(2, np.int64)}}, "floating point"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_with_a_reason_and_nothing_is_charged(
    make: Made, copy: Copy | None, rules: dict[str, Any], letter: dict[str, Any], why: str
) -> None:
    site = make(*([] if copy is None else [copy]), policy=replace(RULES, **rules))
    assert why in refused(site, request(**letter))
    assert charged(site) == (0, 0) and (copy is None or not copy.asked)


@pytest.mark.parametrize("change", [{"names": ["w"]}, {"records": ["a"]}, {"node": {"data": "/etc"}}, {"config": 1}])
def test_letters_in_another_form_are_refused(make: Made, change: dict[str, Any]) -> None:
    header, sent = frames.unpacked(request())
    site = make(Copy())
    assert "message for training" in refused(site, frames.packed(header | change, sent))
    assert charged(site) == (0, 0)


def test_a_round_is_answered_once_and_in_order_also_after_a_restart(make: Made) -> None:
    site = make(Copy())
    first = site.answer(request(2))
    for restarted in (False, True):
        site = make(Copy(step=-10.0)) if restarted else site
        assert site.answer(request(2)) == first  # the same bytes: no further release
        assert "answered already" in refused(site, request(2, value=1.0))
        assert "after round 2 was answered" in refused(site, request(1))
        assert charged(site) == (1, 1)
    assert reply(site, request(3))[0] == {}
    assert "later rounds" in refused(site, request(2))
    assert charged(site) == (1, 2)


def test_other_terms_are_another_run_and_the_total_ends_them(make: Made) -> None:
    site = make(Copy(), policy=replace(RULES, epsilon_total=8.0))  # two runs of 3.71
    assert reply(site, request())[0] == {}
    assert reply(site, request(terms=replace(TERMS, clients=5)))[0] == {}  # round 1 again, and paid again
    assert charged(site) == (2, 2)
    assert "total budget" in refused(site, request(terms=replace(TERMS, job="a2")))
    assert charged(site) == (2, 2)


def test_a_ledger_of_promises_against_the_server_is_not_added_to(make: Made) -> None:
    site = make(Copy(), policy=replace(RULES, epsilon_total=1e9))
    spent = Charge(Cost("record", "add/remove", "server", GaussianEvent(9.0)), 0.5, 1e-6)
    with Ledger(site.folder / "ledger.sqlite") as ledger:
        ledger.charge("plan", "site", spent, job="earlier")
    assert "total budget" in refused(site, request())
    assert charged(site) == (1, 0)  # the earlier one


# --- the mod at a site


@pytest.fixture
def serve() -> Iterator[Callable[[FederationSite], str]]:
    """Return a function that lets a site listen, and returns the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="sordino") as folder:  # a short path
        running: list[tuple[SiteDaemon, threading.Thread]] = []

        def start(site: FederationSite) -> str:
            daemon = SiteDaemon(Path(folder) / f"{len(running)}.sock", site.answer, largest=1 << 20)
            thread = threading.Thread(target=daemon.serve, daemon=True)
            thread.start()
            running.append((daemon, thread))
            return str(daemon.path)

        yield start
        for daemon, thread in running:
            daemon.stop()
            thread.join(5)


def message(round: int = 1, terms: RunTerms = TERMS) -> Message:
    config = ConfigRecord(terms.config() | {"server-round": round, "scale": 2.0})
    record = ArrayRecord({name: Array(value) for name, value in arrays(0.5).items()})
    made = Message(RecordDict({"arrays": record, "config": config}), dst_node_id=7, message_type="train")
    made.metadata.__dict__["_message_id"] = "m"
    return made


def context(**node: Any) -> Context:
    return Context(1, 7, node, RecordDict(), {"rate": 0.5})


def never(*_: Any) -> Message:
    raise AssertionError("the app's function was called in Flower's process")


def test_the_mod_hands_over_to_the_daemon_and_never_calls_the_app(
    make: Made, serve: Callable[[FederationSite], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "of_installed", lambda folder: APP)
    path = serve(make(Copy(step=0.25)))
    mod = private_mod(clip=1.0)
    answer = mod(message(), context(socket=path), never)
    assert list(answer.content) == ["update"] and list(answer.content["update"]) == ["w", "b"]  # the order of the model
    assert answer.content["update"]["w"].numpy().tolist() == [0.25] * 3
    assert answer.content["update"]["b"].numpy().shape == ()
    late = mod(message(4), context(socket=path), never)
    assert late.error.reason == "sordino: round 4 was asked for; the run has 3 rounds."
    gone = mod(message(), context(socket=path + ".gone"), never)
    assert gone.error.reason == client.UNREACHABLE


def test_the_mod_takes_nothing_from_a_daemon_but_an_update(
    serve: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "of_installed", lambda folder: APP)

    class Strange:
        body = b""

        def answer(self, letter: bytes) -> bytes:
            return bytes(SIGNATURE) + self.body

    site = Strange()
    path = serve(site)
    for sent in ({"0": np.ones(3)}, {"0": np.ones(3), "1": np.float64(1)}, {"0": np.ones(4), "1": np.ones(1)}):
        site.body = frames.packed({}, {name: np.asarray(value) for name, value in sent.items()})
        assert private_mod(1.0)(message(), context(socket=path), never).error.reason == client.UNREACHABLE
    site.body = b"patient 4711"
    assert private_mod(1.0)(message(), context(socket=path), never).error.reason == client.UNREACHABLE


def test_both_sides_agree_on_the_signature_and_on_letters() -> None:
    from sordino.federations import letters

    assert site_line.SIGNATURE == SIGNATURE
    header, tensors = letters.unpacked(frames.packed({"a": 1}, {"0": np.asarray(2.0, np.float16)}))
    assert header == {"a": 1} and tensors["0"].shape == () and float(tensors["0"]) == 2.0
    with pytest.raises(RunError, match="no frame"):
        frames.unpacked(b"\xff" * 20)


# --- the process of an app


def written(folder: Path, mods: str = "[private_mod(clip=1.0)]", line: str = "pass") -> Path:
    """Write a small app, and files that are no part of it."""
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "client.pyc").write_bytes(b"old")
    (folder / "weights.bin").write_bytes(b"not packed by Flower")
    (folder / "pyproject.toml").write_text(PROJECT + "\n[tool.flwr.app.config]\nrate = 0.5\n")
    (folder / "client.py").write_text(CLIENT.format(mods=mods, line=line))
    (folder / "server.py").write_text("app = None\n")
    return folder


def test_a_reviewed_app_trains_in_a_process_of_its_own_and_gives_the_update_of_the_mod_alone(
    make: Made, serve: Callable[[FederationSite], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "import os; print('keys:', [k for k in os.environ if 'SECRET' in k or 'SORDINO' in k], os.getcwd())"
    source = written(tmp_path / "app", line=secret)
    monkeypatch.setenv("SECRET_TOKEN", "x")
    installed = install_from_fab(bundle(source), tmp_path / "flower", skip_prompt=True)
    copy = reviewed(source, tmp_path / "state", 60.0)
    assert copy.digest == digest_of(source) == digest.of_installed(installed)  # the mod finds the owner's digest
    (source / "client.py").write_text("raise SystemExit")  # the copy is run, whatever becomes of the folder
    site = make(copy, policy=replace(RULES, foreign_apps=(copy.digest,)), factor=0.001)

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "client", None)
    del sys.modules["client"]  # whatever is imported under this name now goes at the end of the test
    app = child.loaded(installed)  # as in Flower's process
    mod: Any = app._mods[0]
    assert isinstance(mod, PrivateMod) and mod.folder == installed
    alone = app(message(), context(data=str(tmp_path / "ages.csv"), factor=0.001))
    monkeypatch.setattr(np, "loadtxt", never)  # here, but not in the daemon's process
    through = app(message(), context(socket=serve(site)))
    for name in ("w", "b"):
        mine, theirs = (reply.content["update"][name].numpy() for reply in (alone, through))
        assert mine.tobytes() == theirs.tobytes() and mine.any()
    assert list(through.content) == ["update"]
    log = (site.folder / "log.txt").read_text()
    assert "the first age is 71" in log and "keys: []" in log and str(tmp_path / "state" / "apps") in log


def test_a_process_that_fails_or_takes_too_long_tells_the_server_nothing(make: Made, tmp_path: Path) -> None:
    for line, seconds in (("raise ValueError(f'patient {ages[0]}')", 60.0), ("import time; time.sleep(60)", 4.0)):
        copy = reviewed(written(tmp_path / str(seconds), line=line), tmp_path / "state", seconds)
        site = make(copy, policy=replace(RULES, foreign_apps=(copy.digest,)), factor=1)
        header, sent = reply(site, request(app=copy.digest))
        assert header == {"error": FAILED} and not sent
    log = (site.folder / "log.txt").read_text()
    assert "patient 71" in log and "more than 4 seconds" in log


OTHER = "[lambda message, context, after: after(message, context), private_mod(clip=1.0)]"


@pytest.mark.parametrize(
    ("mods", "found"),
    [("[]", AppMod(None, False)), (OTHER, AppMod(1.0, False)), ("[private_mod(2.5)]", AppMod(2.5, True))],
)
def test_the_process_finds_the_mod_of_an_app(tmp_path: Path, mods: str, found: AppMod) -> None:
    assert reviewed(written(tmp_path / "app", mods), tmp_path, 60.0).mod() == found


def test_the_example_can_be_run_by_a_site(make: Made, tmp_path: Path) -> None:
    copy = reviewed(EXAMPLE / "after", tmp_path / "state", 60.0)
    assert isinstance(copy, ReviewedApp) and sorted(p.name for p in copy.folder.iterdir()) == [
        "client.py",
        "pyproject.toml",
        "server.py",
    ]
    site = make(copy, policy=replace(RULES, foreign_apps=(copy.digest,)), **{"partition-id": 3})
    header, sent = reply(site, request(app=copy.digest, arrays={"weights": np.zeros(3, np.float32)}))
    assert header == {} and 0.9999 < np.linalg.norm(sent["0"]) <= 1.0
    before = reviewed(EXAMPLE / "before", tmp_path / "state", 60.0)
    site = make(before, policy=replace(RULES, foreign_apps=(before.digest,)))
    assert "no private_mod" in refused(site, request(app=before.digest))


# --- digests and files


def test_every_packed_file_counts_in_the_digest_and_nothing_else_is_copied(tmp_path: Path) -> None:
    app = written(tmp_path / "app")
    first = digest_of(app)
    assert set(packed_files(app)) == {"client.py", "pyproject.toml", "server.py"}
    (app / "weights.bin").write_bytes(b"other")
    assert digest_of(app) == first
    for name, text in (("client.py", "app = 1"), ("more.json", "{}"), ("pyproject.toml", PROJECT)):
        last = digest_of(app)
        (app / name).write_text(text)
        assert digest_of(app) != last
    with pytest.raises(SpecError, match="no Flower app"):
        digest_of(tmp_path / "nothing")
    bad = tmp_path / "bad.fab"
    import zipfile

    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("../outside.py", "")
    with pytest.raises(SpecError, match="outside"):
        digest_of(bad)


def test_a_policy_lists_digests() -> None:
    with pytest.raises(SpecError, match="no sha256 digest"):
        replace(OPEN, foreign_apps=("my-app",))
    with pytest.raises(SpecError, match="foreign_seconds"):
        replace(OPEN, foreign_seconds=0.0)


def test_the_command_prints_the_digest(capsys: pytest.CaptureFixture[str]) -> None:
    from sordino.cli.site import _config, site

    site.main(["--digest", str(EXAMPLE / "after")], standalone_mode=False)
    assert capsys.readouterr().out.strip() == digest_of(EXAMPLE / "after")
    assert _config(("partition-id=0", "name='a b'", "on=true")) == {"partition-id": 0, "name": "a b", "on": True}
    for bad in ("partition-id", "a=[1]"):
        with pytest.raises(SpecError, match="app-config"):
            _config((bad,))
