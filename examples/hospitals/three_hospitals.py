"""Play "Three hospitals" of docs/deploy.md on one machine: four parties with a network, files and users of their own.

Run it as root on Linux. It takes the commands from the page and runs each of them where the page says:

    python examples/hospitals/three_hospitals.py
    python examples/hospitals/three_hospitals.py --cut    # hospital B, later the server, lose their network

Every party is a network namespace on a bridge, and sees the machine's files through a layer of its own, in which its
folders, users and programs are written. All of it lives in namespaces of this script and ends with it; nothing of the
machine is changed, and nothing leaves it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"
INSIDE = "SORDINO_THREE_HOSPITALS"  # set once the script runs in namespaces of its own
USERS = ("sordino", "flower")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHIM = """#!/bin/sh
# sudo -u USER COMMAND...
user="$2"; shift 2
exec {runuser} env HOME=/nonexistent "$@"
"""
COUNT = """from pathlib import Path
from sordino.deploy.site_account import read_ledger
print(read_ledger(Path('state')).chain.count('kind = ?', ['round']))"""
NAMES = {"operator": "fl.example.org", "hospital A": "site-1", "hospital B": "site-2", "hospital C": "site-3"}
AWAY = 100.0  # seconds without network; the SuperLink counts a node as offline after 60
PATIENCE = 180.0  # seconds for anything to become ready


def steps(page: str) -> dict[int, list[str]]:
    """Return the commands of the section "Three hospitals", by the number of the step."""
    out: dict[int, list[str]] = {}
    number = 0
    for line in _section(page).splitlines():
        if head := re.match(r"\*\*(\d+)\. ", line):
            number = int(head[1])
        elif line.startswith("    ") and number:
            out.setdefault(number, []).append(line.strip())
    return out


def run_file(page: str) -> str:
    """Return study.toml, as the section shows it."""
    found = re.search(r"```toml\n(.*?)```", _section(page), re.DOTALL)
    if found is None:
        raise SystemExit("docs/deploy.md shows no run file in the section 'Three hospitals'.")
    return found[1]


def _section(page: str) -> str:
    return page.partition("\n## Three hospitals\n")[2].partition("\n## ")[0]


@dataclass
class Party:
    """One machine: its name, address, logs, and the process that holds its namespaces."""

    name: str
    address: str
    logs: Path
    holder: subprocess.Popen[bytes]
    background: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def path(self, inside: str) -> Path:
        """Return where a file of this party lies for this script."""
        return Path(f"/proc/{self.holder.pid}/root{inside}")

    def command(self, text: str, folder: str) -> list[str]:
        enter = ["nsenter", f"--target={self.holder.pid}", "--mount", "--net", "--root", f"--wd={self.path(folder)}"]
        return [*enter, "sh", "-c", text]

    def run(self, text: str, folder: str = "/", quiet: bool = False) -> str:
        """Run a command here, show it with what it says, and return that; end the script if it fails."""
        if not quiet:
            say(f"[{self.name}] $ {text}")
        done = subprocess.run(
            self.command(text, folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
        )
        if not quiet or done.returncode:
            say(done.stdout.rstrip(), "    ")
        if done.returncode:
            raise SystemExit(f"the command ended with status {done.returncode}.")
        return done.stdout

    def start(self, text: str, folder: str, ready: str) -> None:
        """Start a command that goes on, and wait until it says that it is ready."""
        say(f"[{self.name}] $ {text} &")
        log = self.logs / f"{self.name} {len(self.background)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(text, folder), stdout=output, stderr=output, env=environment(), start_new_session=True
            )
        self.background.append((process, log))
        wait(lambda: ready in log.read_text(errors="replace"), f"{text}: ready", process, log)
        line = next(line for line in log.read_text(errors="replace").splitlines() if ready in line)
        say(re.sub(r"\x1b\[[0-9;]*m", "", line), "    ")

    def stop(self) -> None:
        """End what was started here and goes on."""
        for process, _ in reversed(self.background):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(30)


def environment() -> dict[str, str]:
    """Return the environment of commands of the parties."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return kept | {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root", "COLUMNS": "120"}


def say(text: str, indent: str = "") -> None:
    for line in text.splitlines():
        print(f"{indent}{line}".rstrip(), flush=True)


def wait(
    ready: Callable[[], bool], what: str, process: subprocess.Popen[bytes] | None = None, log: Path | None = None
) -> None:
    """Wait for something; end the script, with the log, if it does not come or the process ends before."""
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end or (process is not None and process.poll() is not None):
            if log is not None:
                say(log.read_text(errors="replace")[-2000:], "    ")
            raise SystemExit(f"this did not happen: {what}.")
        time.sleep(0.2)


def sh(*words: str) -> None:
    subprocess.run(words, check=True)


def parties(work: Path) -> dict[str, Party]:
    """Make the bridge and the four parties on it."""
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "link", "add", "switch", "type", "bridge")
    sh("ip", "link", "set", "switch", "up")
    out = {name: _party(name, number, work / f"party-{number}") for number, name in enumerate(NAMES, 1)}
    hosts = f"127.0.0.1 localhost\n{out['operator'].address} {NAMES['operator']}\n"
    for party in out.values():
        party.path("/etc/hosts").write_text(hosts)
    return out


def _party(name: str, number: int, place: Path) -> Party:
    layer, root = place / "layer", place / "root"
    for folder in (layer, place / "work", root):
        folder.mkdir(parents=True)
    setup = f"""set -e
mount -t overlay overlay -o lowerdir=/,upperdir={layer},workdir={place}/work {root}
for d in proc sys dev; do mount --rbind /$d {root}/$d; done
mkdir -p {root}/opt/sordino {root}/data {root}/srv
mount --bind {sys.prefix} {root}/opt/sordino
echo ready
exec chroot {root} sleep 100000
"""
    words = ["unshare", "--net", "--mount", "sh", "-c", setup]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE)
    if holder.stdout is None or holder.stdout.readline() != b"ready\n":
        raise SystemExit(f"{name}: a layer over the files of this machine could not be made (is overlayfs there?).")
    sh("ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
    sh("ip", "link", "set", f"port{number}", "master", "switch", "up")
    party = Party(name, f"192.0.2.{number}", place, holder)
    party.run(f"ip link set lo up; ip address add {party.address}/24 dev eth0; ip link set eth0 up", quiet=True)
    return party


def install(everyone: list[Party], commands: list[str]) -> None:
    """Do step 1: the installation at hand takes the place of `pip install`."""
    link = next(text for text in commands if text.startswith("ln "))
    say(f"(the installation that runs this script is {commands[0].split()[-1]} everywhere)")
    for party in everyone:
        party.run(link)
        if shutil.which("sudo", path=PATH) is None:
            _write_shim(party, 'runuser -u "$user" --')


def _write_shim(party: Party, runuser: str) -> None:
    file = party.path("/usr/local/bin/sudo")
    file.write_text(SHIM.format(runuser=runuser))
    file.chmod(0o755)


def two_users(hospital: Party) -> str:
    """Return how the two users of a hospital run: as themselves, or both as root where they cannot run this Python."""
    code = "import sordino.core.version, flwr"
    words = " && ".join(f"sudo -u {user} /opt/sordino/bin/python -c '{code}'" for user in USERS)
    done = subprocess.run(hospital.command(words, "/"), capture_output=True, env=environment())
    if done.returncode == 0:
        return "The users sordino and flower run their processes."
    _write_shim(hospital, "")
    return (
        "NOTE: other users cannot run this Python, so both processes run as ROOT here. Do not do that with real data."
    )


def federate(operator: Party, hospitals: list[Party], pages: dict[int, list[str]], study: str) -> None:
    """Do steps 2 and 3: make the federation, carry the folders to their parties, compare the rosters."""
    home = operator.path("/root/study")
    home.mkdir(parents=True)
    (home / "study.toml").write_text(study)
    write_tables(home, [hospital.path("/data/patients.csv") for hospital in hospitals])
    for text in pages[2]:
        operator.run(text, "/root/study")
    made, server = home / "federation", operator.path("/srv/federation")
    server.mkdir(parents=True)
    for name in ("server", "app"):
        shutil.copytree(made / name, server / name)
    shutil.copy2(made / "federation.toml", server)
    for hospital in hospitals:
        site = NAMES[hospital.name]
        shutil.copytree(made / "sites" / site, hospital.path(f"/srv/sordino/{site}"))
    say("(each folder was carried to its party, and to no other)")
    sums = {party.run(pages[3][0], folder_of(party)).split()[0] for party in (operator, *hospitals)}
    if len(sums) != 1:
        raise SystemExit("the rosters differ.")


def write_tables(study: Path, files: list[Path]) -> None:
    """Split a public table into one file per hospital, and write its schema beside the run file."""
    from sordino.data.sets.breast_cancer import BOUNDS

    whole = study / "whole.csv"
    command = [sys.executable, "-c", "from sordino.cli.main import main; main()"]
    sh(*command, "datasets", "--copy", "breast-cancer", str(whole))
    with whole.open(newline="") as file:
        head, *rows = csv.reader(file)
    whole.unlink()
    lines = [f'["{name}"]\nmin = {a}\nmax = {b}' for name, (a, b) in zip(head, BOUNDS, strict=False)]
    (study / "schema.toml").write_text("\n".join([*lines, f'[{head[-1]}]\nvalues = ["0", "1"]']) + "\n")
    for number, path in enumerate(files):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows[number :: len(files)]])


def folder_of(party: Party) -> str:
    return "/srv/federation" if party.name == "operator" else f"/srv/sordino/{NAMES[party.name]}"


def set_up_site(hospital: Party, commands: list[str]) -> None:
    """Do step 5 at one hospital, with the name of its own site."""
    mine = [text.replace("site-1", NAMES[hospital.name]) for text in commands]
    folder = next(text for text in mine if text.startswith("cd ")).removeprefix("cd ")
    for text in mine:
        if not text.startswith(("sudo ", "cd ")):
            hospital.run(text, "/" if text.startswith("useradd") else folder)
        if text.startswith("useradd"):
            say(two_users(hospital))
            hospital.run("chown sordino: /data/patients.csv && chmod 600 /data/patients.csv")
    daemon, node = (text for text in mine if text.startswith("sudo "))
    hospital.start(daemon, folder, "listens at")
    hospital.start(node, folder, "SuperNode ID")


def progress(operator: Party) -> dict[str, object]:
    """Return what the server last wrote about the newest job; an empty dictionary before its first exchange."""
    files = sorted(operator.path("/srv/federation/server/runs").glob("*/private/federation.json"))
    try:
        return dict(json.loads(files[-1].read_text()))
    except (IndexError, OSError, ValueError):
        return {}


def done(operator: Party) -> int:
    return int(str(progress(operator).get("done") or 0))


def compare(operator: Party, hospitals: list[Party]) -> None:
    """Show how many rounds the server counts of every site and how many the site's own ledger has, and compare."""
    content = progress(operator)
    counted = {str(site["name"]): site for site in content["sites"]}  # type: ignore[attr-defined]
    say(f"{'site':8}{'in its ledger':>15}{'counted by the server':>23}{'silent':>8}{'failed':>8}")
    for hospital in hospitals:
        site = NAMES[hospital.name]
        paid = int(hospital.run(f'/opt/sordino/bin/python -c "{COUNT}"', f"/srv/sordino/{site}", quiet=True))
        there = counted[site]
        say(f"{site:8}{paid:15}{there['participations']:23}{there['silent']:8}{there['failed']:8}")
        if paid < int(there["participations"]):
            raise SystemExit(f"{site} has paid for fewer rounds than the server has got.")
    for file in operator.path("/srv/federation/server/runs").glob("*/public/records.jsonl"):
        lost = [record["round"] for record in map(json.loads, file.read_text().splitlines()) if record.get("lost")]
        say(f"rounds that were lost to all: {', '.join(map(str, lost)) or 'none'}")


def with_cuts(operator: Party, hospitals: list[Party], command: str, timeout: int) -> None:
    """Run the job, cut hospital B off for some rounds, then the server from all, and let both come back."""
    text = f"{command} --timeout {timeout}"
    operator.start(text, "/", "running")
    process, log = operator.background[-1]
    for party, away in ((hospitals[1], AWAY), (operator, AWAY * 2 / 3)):
        first = done(operator) + 3
        wait(lambda first=first: done(operator) >= first, f"round {first}", process, log)
        say(f"--- {party.name} is cut off, after round {done(operator)}")
        party.run("ip link set eth0 down")
        before, since = done(operator), time.monotonic()
        time.sleep(away)
        wait(lambda before=before: done(operator) > before, "the rounds go on", process, log)
        party.run("ip link set eth0 up")
        say(f"--- {party.name} is back, after round {done(operator)} and {time.monotonic() - since:.0f} s")
    process.wait(PATIENCE * 5)
    say(log.read_text(errors="replace").rstrip(), "    ")
    if process.returncode:  # a release outside the rounds needs every site
        name = re.search(r"--resume (\S+)", log.read_text(errors="replace"))
        look = f"{command.replace(' run ', ' status ')} --json"
        wait(lambda: json.loads(operator.run(look, quiet=True))["online"] == len(hospitals), "all are online")
        operator.run(f"{command} --resume {name[1] if name else 'RUN'}")
    for hospital in hospitals:
        ended = any(started.poll() is not None for started, _ in hospital.background)
        say(f"{hospital.name}: {'the processes of before run' if not ended else 'a process has ended'}")


def play(cut: bool, timeout: int) -> None:
    """Do all steps of the page."""
    page = PAGE.read_text(encoding="utf-8")
    pages, study = steps(page), run_file(page)
    study = re.sub(r"rounds = \d+", "rounds = 24", study) if cut else study
    work = Path("/mnt")  # as this script sees it, and nobody else
    sh("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(work))
    operator, *hospitals = parties(work).values()
    install([operator, *hospitals], pages[1])
    federate(operator, hospitals, pages, study)
    for text in pages[4]:
        operator.run(text)
    for hospital in hospitals:
        set_up_site(hospital, pages[5])
    look, run = pages[6]
    operator.run(look)
    if cut:
        with_cuts(operator, hospitals, run, timeout)
        operator.run(look)
    else:
        operator.run(run)
    compare(operator, hospitals)
    for hospital in hospitals:
        hospital.stop()
    for text in pages[7]:
        operator.run(text)
    say("Done: every command of the page worked as printed.")


def again_inside() -> int:
    """Run this script in a network, mounts and processes of its own, all of which end with it; return its status."""
    words = [
        "unshare",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        *sys.argv,
    ]
    inside = subprocess.Popen(words, env=os.environ | {INSIDE: "1"})
    signal.signal(signal.SIGTERM, lambda *_: inside.kill())
    try:
        return inside.wait()
    except KeyboardInterrupt:
        inside.kill()
        return inside.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cut", action="store_true", help="cut hospital B off for some rounds, then the server")
    parser.add_argument("--timeout", type=int, default=30, help="with --cut: seconds to wait for answers")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("making networks and users needs root: run this as root.")
    if INSIDE not in os.environ:
        raise SystemExit(again_inside())
    play(given.cut, given.timeout)


if __name__ == "__main__":
    main()
