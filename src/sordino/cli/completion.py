"""`sordino completion`: print the line that enables shell completion."""

import click

LINES = {
    "bash": 'eval "$(_SORDINO_COMPLETE=bash_source sordino)"',
    "zsh": 'eval "$(_SORDINO_COMPLETE=zsh_source sordino)"',
    "fish": "_SORDINO_COMPLETE=fish_source sordino | source",
}


@click.command()
@click.argument("shell", type=click.Choice(list(LINES)))
def completion(shell: str) -> None:
    """Print the line that enables completion; add it to your shell's start-up file."""
    click.echo(LINES[shell])
