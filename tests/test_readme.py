"""What the README shows is what happens."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
FIRST_RUN = (Path(__file__).parent.parent / "docs" / "first_run.md").read_text()


def example() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    return block


def test_the_example_has_at_most_fifteen_lines():
    assert len([line for line in example().splitlines() if line.strip()]) <= 15


@pytest.mark.slow
def test_the_example_trains_a_private_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(example(), "README", "exec"), names)
    result = names["result"]
    assert result.guarantee.epsilon <= 2.0 and result.accuracy > 0.8
    assert "any single record of any client is protected with epsilon = 2" in capsys.readouterr().out


def test_every_shown_command_and_flag_exists():
    import click

    from sordino.cli.main import cli

    shown = re.findall(r"^    (?:eval \"\$\()?sordino (\w+)(.*)$", README, flags=re.MULTILINE)
    assert len(shown) >= 10
    for name, rest in shown:
        command, words = cli.get_command(click.Context(cli), name), re.split("#|&&", rest)[0].split()
        assert command is not None, name
        if isinstance(command, click.Group):
            command = command.commands[words[0]]
        flags = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        assert {w.split("=")[0] for w in words if w.startswith("--")} <= flags, (name, words)


def test_the_counted_mechanisms_methods_and_algorithms_are_as_many_as_there_are():
    from sordino.core import plugin

    def ours(kind):
        return [name for name in plugin.available(kind) if plugin.ours(kind, name)]

    assert re.search(rf"^    sordino mechanisms +# {len(ours('privacy.mechanisms'))} of them", README, re.MULTILINE)
    table = re.findall(r"^\| `([\w-]+)` \|", README, flags=re.MULTILINE)
    assert set(table) <= set(ours("methods")) and len(table) == 3
    assert f"docs/methods.md lists {len(ours('methods')) - len(table)} more" in README
    assert "with ten algorithms" in README and len(ours("algorithms")) == 10


def test_the_shown_sentence_is_what_a_run_promises():
    from sordino.advice import case
    from sordino.spec import spec

    promise = case.of_spec(spec.from_dict({"device": "cpu"})).job.promise.sentence()
    shown = " ".join(
        re.search(r"^    (In total over.*?test records\.)$", FIRST_RUN, re.DOTALL | re.MULTILINE)[1].split()
    )
    quoted = " ".join(re.search(r"^(> In total.*?test records\.)$", README, re.DOTALL | re.MULTILINE)[1].split())
    assert shown == promise == quoted.replace("> ", "")


def test_every_linked_file_exists():
    root = Path(__file__).parent.parent
    for name in re.findall(r"\]\(([^)#]+)\)|(docs/[\w/.-]+|[A-Z]+\.md|NOTICE)", README):
        path = next(n for n in name if n).rstrip(".")
        assert path.startswith("http") or (root / path).exists(), path
