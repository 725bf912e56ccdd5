"""The server's side of the app: starts Sordino's own rounds on the nodes that Flower reaches."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the job that spec.toml beside this file describes."""
    from sordino.deploy.server import main as serve

    serve(grid, context, Path(__file__).parent)
