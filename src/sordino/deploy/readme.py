"""The page that comes with a federation: which folder goes where, and the exact commands there."""

from __future__ import annotations

from typing import Any

from sordino.deploy.flower import ENVIRONMENT
from sordino.deploy.folder import CONNECTION, Roster


def node_script(roster: Roster, number: int) -> str:
    """Return the script that starts the SuperNode of a site, from the folder of the site."""
    site = roster.sites[number].name
    exports = "\n".join(f"export {name}={value}" for name, value in ENVIRONMENT.items())
    return f"""#!/bin/sh
# Starts the SuperNode of {site}. Run it as another user than `sordino site`: apps that Flower starts here can then
# read neither the data nor the keys of the site, and reach them through the socket alone, under policy.toml.
set -eu
cd "$(dirname "$0")"
{exports}
export FLWR_HOME="${{FLWR_HOME:-$PWD/home}}"
mkdir -p "$FLWR_HOME"
exec flower-supernode --superlink {_dialled(roster.host)}:{roster.port} --root-certificates ca.crt \\
  --auth-supernode-private-key node --host 127.0.0.1 --port "${{PORT:-{roster.node_port(number)}}}" \\
  --ssl-certfile site.crt --ssl-keyfile site.key --ssl-ca-certfile ca.crt \\
  --node-config "socket=\\"${{SOCKET:-$PWD/socket/site.sock}}\\" site=\\"{site}\\""
"""


def page(roster: Roster, keys: dict[str, Any]) -> str:
    """Return README.md of a federation."""
    rows = "\n".join(f"| `sites/{site.name}` | {site.name}, and nobody else |" for site in roster.sites)
    exports = "\n".join(f"    export {name}={value}" for name, value in ENVIRONMENT.items())
    first = roster.sites[0].name
    return f"""# The federation {roster.name}

{len(roster.sites)} sites train {keys.get("dataset", "mnist")} together with `{keys.get("method", "dp-sgd")}`.
Sites reach the server at `{roster.host}:{roster.port}`. This page was written by `sordino deploy init`; nothing here
needs editing.

## Try all of it on this machine

    sordino deploy up        # starts the server and all sites, as processes of this machine
    sordino deploy run       # starts the job and follows it
    sordino deploy status    # who is online, which round, what each site has spent
    sordino deploy down      # stops what `up` started, and nothing else

Run these beside this folder, or name it with `--folder`.

## Which folder goes where

Every party installs `pip install 'sordino[flower]'`. Copy over a channel that you trust: the folders hold private keys.

| folder | goes to |
| --- | --- |
| `ca/` | nobody: it stays with the operator, best offline |
| `server/`, `app/`, `federation.toml` | the server |
{rows}

Compare `federation.toml` with the other sites by telephone or by e-mail, not through the server: it holds the keys by
which sites recognise each other.

## On the server

    sordino deploy up --nodes 0
    sordino deploy run

Only port {roster.port} needs to be reachable. The SuperLink itself listens on 127.0.0.1:{roster.inner_port}, where
commands need no name; whoever has an account on the server can therefore start jobs.

## On a site, in the folder that was copied (here {first})

Read `policy.toml` first: it is yours, and no job can go beyond it. Two users keep the site's data from apps that Flower
runs: `sordino` holds data and keys, `flower` runs the node. As root, once:

    mkdir -p home socket state && chown -R sordino: . && chmod 711 . && chmod 700 state
    chown -R flower: node site.key site.crt home && chmod 700 home
    chgrp flower socket && chmod 2710 socket

Then, as `sordino`, with the data of the site, and as `flower`, each in a terminal or as a service:

    sordino site --data DATA --policy policy.toml
    ./node.sh

With a shipped benchmark as DATA, add `--client`, the number of the site from 0, as in `--client 0` for {first}.

## With the commands of Flower

{exports}
    export FLWR_HOME=$PWD/server/home
    flwr run app {CONNECTION} -c "out=\\"$PWD/server/runs\\""
    flwr ls {CONNECTION}
    flwr supernode list {CONNECTION}
"""


def _dialled(host: str) -> str:
    return f"[{host}]" if ":" in host else host
