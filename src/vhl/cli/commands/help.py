"""`vhl help`: what can be set, and to what."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from typing import Any

from rich.markup import escape
from rich.table import Table

from vhl.cli.display import console
from vhl.config.component import Component
from vhl.config.listing import available
from vhl.config.registry import identify, suggest
from vhl.errors import VHLError
from vhl.experiment import PARTS, options, options_of, settings, suggest_key
from vhl.objectives.base import Objective
from vhl.objectives.distances.base import Distance

_INSIDE = "objective.distance"
_PARTS: dict[str, type[Component]] = {**PARTS, _INSIDE: Distance}
"""Parts, and the one inside a part that has components which are nowhere else."""


def main(arguments: argparse.Namespace) -> None:
    key = arguments.key
    if key is None:
        _everything()
        return
    part, option = _split(key)
    if part not in _PARTS:
        _settings(key)
    elif option in available(_PARTS[part].room) or ":" in option:
        _component(part, option)
    else:
        _part(part, option)
    if key == _INSIDE:
        _part(_INSIDE, "")


def _split(key: str) -> tuple[str, str]:
    """A part, and what follows it: a component or an option."""
    if key.startswith((f"{_INSIDE}=", f"{_INSIDE}.")):
        return _INSIDE, key[len(_INSIDE) + 1 :]
    part, _, option = key.replace("=", ".", 1).partition(".")
    return part, option


def _everything() -> None:
    _print_settings({key: value for key, value in settings().items() if key not in PARTS})
    about = {part: settings()[part] for part in PARTS} | {_INSIDE: options(Objective)["vhl"]["distance"]}
    for part, (description, default) in about.items():
        usual = getattr(default, "name", default)
        console.print(f"\n[bold]{part}[/]: {description} (default: {usual})")
        for name, entry in available(_PARTS[part].room).items():
            console.print(f"  [cyan]{name}[/]  {escape(entry.summary)}")
    console.print(
        "\n`vhl help KEY` shows the options of one: vhl help objective=vhl, vhl help partition.alpha, "
        "vhl help algorithm=my_method.py:MyMethod"
    )


def _part(part: str, option: str) -> None:
    """All components of a part, or those that have an option."""
    every = options(_PARTS[part])
    found = {
        name: {key: value for key, value in fields.items() if not option or key == option}
        for name, fields in every.items()
    }
    if option and not any(found.values()):
        names = {key for fields in every.values() for key in fields} | set(every)
        raise VHLError(f"{part} has no option {option!r}{suggest(option, names)}")
    for name, fields in found.items():
        if fields or not option:
            _component(part, name, fields)


def _component(part: str, name: str, fields: dict[str, tuple[str, Any]] | None = None) -> None:
    """One that is built in or installed, or of a file of one's own."""
    cls, _ = identify(_PARTS[part], {"name": name})
    summary, _, more = inspect.cleandoc(cls.__doc__ or "").partition("\n")
    console.print(f"[bold]{part}={name}[/]  {escape(summary)}  [dim]{cls.__module__}[/]")
    if fields is None and more.strip():
        console.print(textwrap.indent(escape(more.strip().replace("``", "`")), "  "), soft_wrap=True)
    chosen = options_of(cls) if fields is None else fields
    _print_settings({f"{part}.{key}": value for key, value in chosen.items()})


def _settings(key: str) -> None:
    """Settings by their full key, their section or their last word."""
    found = {
        k: v for k, v in settings().items() if k == key or k.startswith(f"{key}.") or k.endswith(f".{key}")
    }
    homes = {
        part: {n: own for n, own in options(base).items() if key in own} for part, base in _PARTS.items()
    }
    if not found and not any(homes.values()):
        raise VHLError(f"There is no setting {key!r}{suggest_key(key)}")
    _print_settings(found)
    for part, having in homes.items():
        for name in sorted(having):
            _component(part, name, {key: having[name][key]})


def _print_settings(found: dict[str, tuple[str, Any]]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    for key, (description, default) in found.items():
        shown = "unset" if default is None else getattr(default, "name", default)
        table.add_row(f"[cyan]{key}[/]", escape(str(shown)), escape(description))
    if found:
        console.print(table)
