"""`sordino deploy init` writes a whole federation, or nothing, and leaves nothing to edit."""

from __future__ import annotations

import ast
import re
import stat
import subprocess
import sys
import tomllib

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from sordino.core.errors import RunError, SordinoError, SpecError
from sordino.deploy.create import create
from sordino.deploy.folder import Folder, read_roster
from sordino.masking.identity import Identity
from sordino.spec import spec as specs

SECRET = {"policy.toml", "ca.key", "server.key", "superexec.secret", "node", "identity.key", "site.key"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Folder:
    """A federation of three sites."""
    here = tmp_path_factory.mktemp("init")
    (here / "spec.toml").write_text('rounds = 3\nepsilon = 1.5\nmethod = "dp-sgd"\nclasses = ["a", "b"]\n')
    return create(here / "spec.toml", here / "out", 3, host="fl.example.org", port=20000)


def test_every_secret_is_for_its_owner_alone_and_nothing_else_is_missing(made):
    files = {p.relative_to(made.path): p for p in made.path.rglob("*") if p.is_file()}
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in files.items()}
    secret = {name for name in files if name.name in SECRET}
    assert len(secret) == 3 + 3 * 4
    assert {modes[name] for name in secret} == {0o600}
    assert all(modes[name] & 0o400 for name in files)
    for site in ("site-1", "site-2", "site-3"):
        found = {p.name for p in made.site(site).iterdir()}
        assert found == {
            "node", "node.pub", "node.sh", "identity.key", "ca.crt", "site.crt", "site.key", "federation.toml",
            "policy.toml",
        }  # fmt: skip
        assert b"PRIVATE" not in (made.nodes / f"{site}.pub").read_bytes()
    for folder in (made.ca, made.server):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not any(p.suffix == ".key" or p.name == "node" for p in made.app.rglob("*"))


def test_the_roster_holds_the_public_keys_of_the_sites(made):
    roster = made.roster()
    assert (roster.host, roster.port, roster.inner_port) == ("fl.example.org", 20000, 20001)
    for site in roster.sites:
        assert Identity.read(made.site(site.name) / "identity.key").public == site.key
        node = load_ssh_private_key((made.site(site.name) / "node").read_bytes(), None)
        public = load_ssh_public_key((made.nodes / f"{site.name}.pub").read_bytes())
        assert isinstance(node, ec.EllipticCurvePrivateKey) and node.curve.name == "secp384r1"
        assert node.public_key() == public
        copy = made.site(site.name) / "federation.toml"
        assert copy.read_bytes() == made.roster_file.read_bytes()
    assert len({site.key for site in roster.sites}) == 3
    assert (made.app / "sordino_app" / "federation.toml").read_bytes() == made.roster_file.read_bytes()


def test_the_app_holds_the_spec_with_one_client_per_site(made):
    keys = specs.read(made.spec)
    assert keys == {"rounds": 3, "epsilon": 1.5, "method": "dp-sgd", "classes": ["a", "b"], "clients": 3}
    app = tomllib.loads((made.app / "pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"]["config"] == {
        "out": "", "timeout": 600.0, "wait": 120.0, "sites": 0, "resume": "", "name": "",
        "shuffler": "", "shuffler_ca": "",
    }  # fmt: skip
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", app["project"]["name"])  # what Flower accepts
    server = made.home / "config.toml"
    assert tomllib.loads(server.read_text())["superlink"]["federation"]["address"] == "127.0.0.1:20001"


def test_the_shim_of_a_site_imports_nothing_but_flower_and_the_standard_library(made):
    tree = ast.parse((made.app / "sordino_app" / "client.py").read_text())
    found = {n.names[0].name for n in ast.walk(tree) if isinstance(n, ast.Import)}
    found |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    assert {name.split(".")[0] for name in found} - {"flwr"} <= set(sys.stdlib_module_names)


def test_the_policy_allows_this_spec_and_no_other(made):
    from sordino.deploy import policy

    rules = policy.read(made.site("site-2") / "policy.toml")
    spec = specs.from_dict(specs.read(made.spec))
    rules.check(spec, "server", "record", "research", 3)
    assert (rules.epsilon_per_job, rules.epsilon_total, rules.delta_total) == (1.5, 1.5, 1e-5)
    assert rules.secure_noise is False and rules.foreign_apps == ()
    for other in (
        (spec, "public", "record", "research", 3),
        (spec, "server", "client", "research", 3),
        (specs.from_dict(specs.read(made.spec) | {"method": "none"}), "server", "record", "research", 3),
        (specs.from_dict(specs.read(made.spec) | {"delta": 1e-4}), "server", "record", "research", 3),
        (spec, "server", "record", "research", 2),
    ):
        with pytest.raises(SordinoError):
            rules.check(*other)


def test_real_data_ask_for_noise_of_the_operating_system(tmp_path):
    (tmp_path / "patients.csv").write_text("a,ill\n1,0\n2,1\n")
    (tmp_path / "schema.toml").write_text("[a]\nmin = 0\nmax = 9\n")
    (tmp_path / "spec.toml").write_text(
        f'dataset = "{tmp_path}/patients.csv"\nlabel_column = "ill"\nschema = "schema.toml"\nclients = 2\n'
    )
    folder = create(tmp_path / "spec.toml", tmp_path / "out")
    assert tomllib.loads((folder.site("site-1") / "policy.toml").read_text())["secure_noise"] is True
    assert specs.read(folder.spec)["schema"] == "schema.toml"
    assert (folder.app / "sordino_app" / "schema.toml").read_text() == (tmp_path / "schema.toml").read_text()
    assert len(folder.roster().sites) == 2  # as many as the run file has clients


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "how many sites"),
        ("clients = 50", {"sites": 3}, "clients = 50"),
        ("rouns = 3", {"sites": 3}, "rounds"),
        ('method = "dp-sgd"\nchannel = "nowhere"', {"sites": 3}, "nowhere"),
        ('schema = "gone.toml"', {"sites": 3}, "gone.toml"),
        ("", {"sites": 0}, "at least 1"),
        ("", {"sites": 501}, "1 to 500 sites"),
        ("", {"sites": 3, "port": 65535}, "port"),
        ("", {"sites": 3, "port": 0}, "port"),
        ("", {"sites": 3, "days": 0}, "days"),
        ("", {"sites": 3, "host": "http://x:1"}, "host"),
        ("", {"sites": 3, "host": "300.1.2.3"}, "host"),
        ("", {"sites": 3, "name": 'x"\n'}, "name"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(tmp_path, text, options, words):
    (tmp_path / "spec.toml").write_text(text + "\n")
    with pytest.raises((SpecError, RunError)) as error:
        create(tmp_path / "spec.toml", tmp_path / "out", **options)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["spec.toml"]


def test_nothing_is_overwritten_and_a_failure_in_the_middle_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "spec.toml").write_text("rounds = 3\n")
    (tmp_path / "out").mkdir()
    with pytest.raises(RunError, match="exists already"):
        create(tmp_path / "spec.toml", tmp_path / "out", 2)
    (tmp_path / "out").rmdir()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sordino.deploy.app.write", full)
    with pytest.raises(RunError, match="No space left"):
        create(tmp_path / "spec.toml", tmp_path / "out", 2)
    assert [p.name for p in tmp_path.iterdir()] == ["spec.toml"]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace('name = "site-2"', 'name = "site-1"'),
        lambda t: t.replace('name = "site-2"', 'name = "../x"'),
        lambda t: re.sub(r'key = "..', 'key = "zz', t, count=1),
        lambda t: t.replace("port = 20000", ""),
        lambda t: t[:100],
    ],
)
def test_a_damaged_roster_is_refused(made, tmp_path, change):
    path = tmp_path / "federation.toml"
    path.write_text(change(made.roster_file.read_text()))
    with pytest.raises(RunError) as error:
        read_roster(path)
    assert str(path) in str(error.value)


def test_the_script_of_a_node_is_valid_shell_and_names_the_server(made):
    script = made.site("site-3") / "node.sh"
    assert subprocess.run(["sh", "-n", str(script)]).returncode == 0
    text = script.read_text()
    assert "--superlink fl.example.org:20000" in text and "FLWR_TELEMETRY_ENABLED=0" in text and "20103" in text


def test_the_page_names_every_folder_and_no_place_of_this_machine(made):
    page = (made.path / "README.md").read_text()
    assert all(f"`sites/{site.name}`" in page for site in made.roster().sites)
    assert str(made.path) not in page
