"""The command `vhl`: parse, call, print."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from vhl.cli.arguments import Parser
from vhl.cli.commands import COMMANDS
from vhl.errors import VHLError
from vhl.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; says its exit code."""
    parsed = _parse(arguments)
    signal.signal(signal.SIGTERM, _interrupt)  # a cluster's polite kill ends as cleanly as Ctrl-C
    try:
        parsed.main(parsed)
    except VHLError as error:
        print(f"vhl: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt as stop:
        print(f"\nvhl: stopped. {stop}".rstrip(), file=sys.stderr)  # noqa: T201
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `vhl ... | head` is no error
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="vhl",
        description="Federated learning on non-IID data, with and without Virtual Homogeneity Learning.",
        epilog="Start with: vhl run data=digits objective=vhl rounds=50",
    )
    parser.add_argument("--version", action="version", version=f"vhl {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Settings may stand before and after options: `vhl run --resume rounds=200`."""
    parser = build_parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(parsed, "settings") or any(word.startswith("-") for word in rest)):
        hint = "; settings have no dashes, as in data=digits" if hasattr(parsed, "settings") else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if rest:
        parsed.settings += rest
    return parsed


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
