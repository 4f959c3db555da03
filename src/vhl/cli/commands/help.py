"""`vhl help`: what can be set, and to what."""

from __future__ import annotations

import argparse
from typing import Any

from rich.markup import escape
from rich.table import Table

from vhl.cli.display import console
from vhl.errors import VHLError
from vhl.experiment import PARTS, options, settings, suggest_key
from vhl.registry import available, suggest


def main(arguments: argparse.Namespace) -> None:
    key = arguments.key
    if key is None:
        _everything()
        return
    part, _, option = key.replace("=", ".", 1).partition(".")
    if part in PARTS and option in available(PARTS[part]):
        _component(part, option)
    elif part in PARTS:
        _part(part, option)
    else:
        _settings(key)


def _everything() -> None:
    _print_settings({key: value for key, value in settings().items() if key not in PARTS})
    for part, room in PARTS.items():
        console.print(f"\n[bold]{part}[/]: {settings()[part][0]} (default: {settings()[part][1]})")
        for name, entry in available(room).items():
            console.print(f"  [cyan]{name}[/]  {escape(entry.summary)}")
    console.print(
        "\n`vhl help KEY` shows the options of one: vhl help objective=vhl, vhl help partition.alpha"
    )


def _part(part: str, option: str) -> None:
    """All components of a part, or those that have an option."""
    found = {
        name: {key: value for key, value in fields.items() if not option or key == option}
        for name, fields in options(part).items()
    }
    if option and not any(found.values()):
        names = {key for fields in options(part).values() for key in fields} | set(available(PARTS[part]))
        raise VHLError(f"{part} has no option {option!r}{suggest(option, names)}")
    for name, fields in found.items():
        if fields or not option:
            _component(part, name, fields)


def _component(part: str, name: str, fields: dict[str, tuple[str, Any]] | None = None) -> None:
    entry = available(PARTS[part])[name]
    console.print(f"[bold]{part}={name}[/]  {escape(entry.summary)}  [dim]{entry.module}[/]")
    chosen = options(part)[name] if fields is None else fields
    _print_settings({f"{part}.{key}": value for key, value in chosen.items()})


def _settings(key: str) -> None:
    """Settings by their full key, their section or their last word."""
    found = {
        k: v for k, v in settings().items() if k == key or k.startswith(f"{key}.") or k.endswith(f".{key}")
    }
    homes = {part: {name for name, fields in options(part).items() if key in fields} for part in PARTS}
    if not found and not any(homes.values()):
        raise VHLError(f"There is no setting {key!r}{suggest_key(key)}")
    _print_settings(found)
    for part, names in homes.items():
        for name in sorted(names):
            _component(part, name, {key: options(part)[name][key]})


def _print_settings(found: dict[str, tuple[str, Any]]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    for key, (description, default) in found.items():
        shown = "unset" if default is None else getattr(default, "name", default)
        table.add_row(f"[cyan]{key}[/]", escape(str(shown)), escape(description))
    if found:
        console.print(table)
