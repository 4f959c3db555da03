"""Settings and components as `vhl help` explains them."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping

from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from vhl.cli.display import console
from vhl.config.component import Component
from vhl.config.listing import available
from vhl.config.registry import identify, suggest
from vhl.errors import VHLError
from vhl.experiment import PARTS, options, options_of, settings, suggest_key
from vhl.objectives.distances.base import Distance
from vhl.objectives.vhl import VHL

_INSIDE = "objective.distance"
_PARTS: dict[str, type[Component]] = {**PARTS, _INSIDE: Distance}
"""Parts, and the one inside a part that has components which are nowhere else."""


def everything() -> None:
    fields = settings()
    _print({key: field for key, field in fields.items() if key not in PARTS})
    for part, base in _PARTS.items():
        field = VHL.model_fields["distance"] if part == _INSIDE else fields[part]
        console.print(f"\n[bold]{part}[/]: {field.description} (default: {_default(field)})")
        for name, entry in available(base.room).items():
            console.print(f"  [cyan]{name}[/]  {escape(entry.summary)}")
    console.print(
        "\n`vhl help KEY` shows the options of one: vhl help objective=vhl, vhl help partition.alpha, "
        "vhl help algorithm=my_method.py:MyMethod"
    )


def explain(key: str) -> None:
    """A part, a component, an option, a section or a setting."""
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


def _part(part: str, option: str) -> None:
    """All components of a part, or those that have an option."""
    every = options(_PARTS[part])
    having = {name: fields for name, fields in every.items() if not option or option in fields}
    if not having:
        names = {key for fields in every.values() for key in fields} | set(every)
        raise VHLError(f"{part} has no option {option!r}{suggest(option, names)}")
    for name, fields in having.items():
        _component(part, name, {option: fields[option]} if option else fields)


def _component(part: str, name: str, fields: Mapping[str, FieldInfo] | None = None) -> None:
    """One that is built in or installed, or of a file of one's own: all of it, or some fields alone."""
    cls, _ = identify(_PARTS[part], {"name": name})
    summary, _, more = inspect.cleandoc(cls.__doc__ or "").partition("\n")
    console.print(f"[bold]{part}={name}[/]  {escape(summary)}  [dim]{cls.__module__}[/]")
    if fields is None and more.strip():
        console.print(textwrap.indent(escape(more.strip().replace("``", "`")), "  "), soft_wrap=True)
    chosen = options_of(cls) if fields is None else fields
    _print({f"{part}.{option}": field for option, field in chosen.items()})


def _settings(key: str) -> None:
    """Settings by their full key, their section or their last word."""
    found = {
        full: field
        for full, field in settings().items()
        if full == key or full.startswith(f"{key}.") or full.endswith(f".{key}")
    }
    having = [
        (part, name, fields[key])
        for part, base in _PARTS.items()
        for name, fields in sorted(options(base).items())
        if key in fields
    ]
    if not found and not having:
        raise VHLError(f"There is no setting {key!r}{suggest_key(key)}")
    _print(found)
    for part, name, field in having:
        _component(part, name, {key: field})


def _print(fields: Mapping[str, FieldInfo]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    for key, field in fields.items():
        table.add_row(f"[cyan]{key}[/]", escape(_default(field)), escape(field.description or ""))
    if fields:
        console.print(table)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be set"
    default = field.get_default(call_default_factory=True)
    return "unset" if default is None else str(getattr(default, "name", default))
