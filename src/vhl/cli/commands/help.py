"""`vhl help`: what can be set, and to what."""

from __future__ import annotations

import argparse

from vhl.cli.arguments import Commands, add_command


def add(commands: Commands) -> None:
    parser = add_command(commands, "help", _help)
    parser.add_argument("key", nargs="?", help="such as training, algorithm, algorithm.mu or objective=vhl")


def _help(arguments: argparse.Namespace) -> None:
    """Explain settings and list what they can be."""
    from vhl.cli.explain import everything, explain

    if arguments.key is None:
        everything()
    else:
        explain(arguments.key)
