"""What every test gets: one thread, a folder of its own, no fault hook left behind; and data, or a loud skip."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as below, and read when numpy is imported

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for `import support`

SHARED = HERE.parent.parent / "shared" / "data"
EXEMPT = ("gpu", "cifar10", "fashion_mnist")  # may be skipped even where data is expected
NO_DATA = "no data: "


def data_folder() -> Path:
    return Path(os.environ.get("SORDINO_DATA") or SHARED)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # two test processes share two cores


@pytest.fixture(scope="session", autouse=True)
def _no_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures of modules and of the session charge goes to a folder of theirs, never to the user's registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SORDINO_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders, one after the other: `mktemp` reads the names of all that are there for every one of thousands."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _fresh_home(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a registry of its own; processes that it starts inherit it."""
    home = next(_homes)
    home.mkdir()
    monkeypatch.setenv("SORDINO_HOME", str(home))


@pytest.fixture(autouse=True)
def _no_hook_left() -> Iterator[None]:
    yield
    faults = sys.modules.get("sordino.core.faults")
    if faults is not None:
        faults.set_hook(None)


@pytest.fixture
def data_file():
    """data_file("mnist/mnist.npz") is the path of a file in the data folder, or the reason of a skip."""

    def find(name: str) -> Path:
        path = data_folder() / name
        if not path.is_file():
            pytest.skip(f"{NO_DATA}{name} is not in {data_folder()} (set SORDINO_DATA to the folder that has it)")
        return path

    return find


@pytest.fixture(scope="session")
def sordino_command():
    """sordino_command("run", "file.toml", cwd=...) runs the command in a process of its own."""
    from support.forkserver import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture
def small_npz(tmp_path: Path) -> Path:
    """tmp_path/small.npz: 96 training and 60 test records of three classes."""
    import numpy as np

    from support.problems import federation, held_out

    clients, (x, y) = federation(), held_out()
    np.savez(
        tmp_path / "small.npz",
        x_train=np.concatenate([c[0].numpy() for c in clients]),
        y_train=np.concatenate([c[1].numpy() for c in clients]),
        x_test=x.numpy(),
        y_test=y.numpy(),
        classes=np.array(3),
    )
    return tmp_path / "small.npz"


def pytest_collection_finish() -> None:
    gc.freeze()  # torch and ten thousand tests stay: not to be looked through for garbage again and again


def _reason(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")


def inexcusable(nodeid: str, reason: str) -> bool:
    """Skipped for data that lies where it is looked for by default: a mistake of ours, not of the machine."""
    if not reason.startswith(NO_DATA) or any(word in nodeid.lower() for word in EXEMPT):
        return False
    return (SHARED / reason.removeprefix(NO_DATA).split(" ")[0]).exists()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not os.environ.get("CI") or not SHARED.is_dir():
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if any(inexcusable(r.nodeid, _reason(r)) for r in skipped) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("tests that did not run")
    for report in skipped:
        reason = _reason(report)
        blame = "  <- fails this CI run" if os.environ.get("CI") and inexcusable(report.nodeid, reason) else ""
        terminalreporter.line(f"{report.nodeid}: {reason}{blame}")
