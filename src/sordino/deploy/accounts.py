"""Users of a site: Flower's processes must not be able to read what the site's daemon reads.

Flower executes whatever app the server sends. Where the operating system allows it (as root), the SuperNode therefore
runs as a user who can read its own key and enter the folder of the socket, and nothing else of the site.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from sordino.core.errors import RunError
from sordino.deploy.processes import SystemUser

USUAL = "nobody"
OF_THE_NODE = ("node", "site.crt", "site.key", "home")


def choose(wanted: str | None, reach: Path) -> tuple[SystemUser | None, str | None]:
    """Return the user for Flower's processes of sites (None: the same as now), and a warning if it is the same.

    Args:
        wanted: the name of a user; None takes `nobody` where that is possible.
        reach: a folder that this user must be able to enter.
    """
    if os.geteuid() != 0:
        if wanted is not None and wanted != pwd.getpwuid(os.geteuid()).pw_name:
            raise RunError(f"only root can start processes as the user {wanted}: run as root, or drop --flower-user.")
        return None, _warning("you are not root")
    try:
        entry = pwd.getpwnam(wanted or USUAL)
    except KeyError as error:
        if wanted is not None:
            raise RunError(f"there is no user {wanted} on this machine.") from error
        return None, _warning(f"there is no user {USUAL}")
    if entry.pw_uid == 0:
        return None, _warning("--flower-user is root")
    account = SystemUser(entry.pw_name, entry.pw_uid, entry.pw_gid)
    obstacle = _obstacle(account, reach)
    if obstacle is None:
        return account, None
    if wanted is not None:
        raise RunError(f"the user {wanted} {obstacle}. Move it to where that user may read, or name another user.")
    return None, _warning(f"the user {USUAL} {obstacle}")


def _warning(reason: str) -> str:
    return (
        f"Warning: sites and Flower run as the same user here ({reason}), so code of an app could read the files of a "
        "site. That is fine for a trial with public data. For private data run `sordino site` and node.sh as two "
        "users, or `up` as root with --flower-user USER."
    )


def _obstacle(account: SystemUser, reach: Path) -> str | None:
    """Return what keeps a user from running this interpreter in this folder; None if nothing does."""
    code = "import sys, os, flwr.clientapp; sys.exit(0 if os.access(sys.argv[1], os.X_OK) else 3)"
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(reach)],
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            cwd="/",
            env=environment,
            capture_output=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"cannot run {sys.executable}"
    return {0: None, 3: f"cannot enter {reach}"}.get(done.returncode, f"cannot run Flower with {sys.executable}")


def hand_over(site: Path, account: SystemUser) -> None:
    """Give the node's own files to Flower's user; everything else of the site stays closed to that user.

    The home of a node holds what Flower unpacked there, and nothing that lasts: one of another user is made anew.
    """
    home = site / "home"
    if home.lstat().st_uid != account.uid:
        shutil.rmtree(home)
        home.mkdir(mode=0o700)
    for path in (site / name for name in OF_THE_NODE):
        os.chown(path, account.uid, account.gid)


def let_in(folder: Path, account: SystemUser) -> None:
    """Let Flower's user enter the folder of a socket; the socket, once made, inherits the group of the folder."""
    os.chown(folder, -1, account.gid)
    folder.chmod(0o2710)
