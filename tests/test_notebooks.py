"""The notebooks of examples/notebooks run from top to bottom, and show what a reader is promised to see."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import sordino

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
NOTEBOOKS = {"own_table": ("Result", "Guarantee"), "accounting_and_methods": ("Guarantee", "Comparison")}


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A shell that takes itself for the kernel of a notebook and keeps what is displayed."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.display_pub = CapturingDisplayPublisher()
    shell.kernel = object()
    yield shell
    InteractiveShell.clear_instance()


def cells(name: str) -> list[dict]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]


def test_there_are_no_others():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs(name):
    for cell in cells(name):
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_shows_results_as_html(name, shell, capsys):
    shown: dict[str, str] = {}
    for cell in cells(name):
        if cell["cell_type"] == "code":
            done = shell.run_cell("".join(cell["source"]))
            assert done.success, capsys.readouterr().out
            if type(done.result).__module__.startswith("sordino."):
                shown[type(done.result).__name__] = shell.display_formatter.format(done.result)[0]["text/html"]
    assert tuple(shown) == NOTEBOOKS[name]
    for text in shown.values():
        ElementTree.fromstring(text)  # every element is closed, every text escaped
        assert "<svg" in text and "<script" not in text
    bars = shell.display_pub.outputs
    assert not bars[0]["update"] and all(bar["update"] for bar in bars[1:]), "one bar, which is replaced"
    done, total = (
        ElementTree.fromstring(bars[-1]["data"]["text/html"]).find("progress").get(k) for k in ("value", "max")
    )
    assert done == total


def offered(shell: InteractiveShell, text: str) -> set[str]:
    with provisionalcompleter():
        return {completion.text for completion in shell.Completer.completions(text, len(text))}


def test_completion_shows_the_public_names(shell):
    shell.user_ns["sordino"] = sordino
    shell.user_ns["promise"] = sordino.Guarantee(1.0, 1e-5, "record", "add/remove", "server", 3, "secure")
    assert offered(shell, "sordino.") == set(sordino.__all__) - {"__version__"}
    assert offered(shell, "sordino.accounting.") == set(sordino.accounting.__all__)
    fields = set(sordino.Guarantee.__dataclass_fields__)
    assert offered(shell, "promise.") == fields | {"sentence", "from_json", "to_json"}
