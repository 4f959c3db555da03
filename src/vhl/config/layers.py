"""Settings in layers: each says only what it sets, and later ones are laid over earlier ones."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vhl.config.component import Component
from vhl.config.listing import available
from vhl.config.registry import identify
from vhl.errors import VHLError


def read_toml(file: Path) -> dict[str, Any]:
    """The settings in an experiment file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise VHLError(f"{file} does not exist; `vhl init {file}` writes one to start from.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise VHLError(f"{file} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise VHLError(f"{file} is not valid TOML: {error}.") from None


def parse_value(text: str) -> Any:
    """A TOML value where the text is one, else the text itself.

    >>> [parse_value(text) for text in ("3", "0.5", "true", "[1, 2]", "fedprox", "folder:my images")]
    [3, 0.5, True, [1, 2], 'fedprox', 'folder:my images']
    >>> parse_value("2022-07-17")  # no setting is a date, but a name may look like one
    '2022-07-17'
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    is_setting = len(parsed) == 1 and not isinstance(parsed["value"], (date, time))
    return parsed["value"] if is_setting else text


def nest(key: str, value: Any) -> dict[str, Any]:
    """``a.b.c`` and a value as nested tables.

    >>> nest("algorithm.mu", 0.1)
    {'algorithm': {'mu': 0.1}}
    """
    head, _, rest = key.partition(".")
    return {head: nest(rest, value) if rest else value}


def lay(old: Any, new: Any) -> Any:
    """Lay a value over another: tables option by option, but another component replaces the old one whole.

    >>> lay({"name": "fedprox", "mu": 2}, {"weighting": "uniform"})
    {'name': 'fedprox', 'mu': 2, 'weighting': 'uniform'}
    >>> lay({"name": "fedprox", "mu": 2}, "scaffold")
    {'name': 'scaffold'}
    """
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        old, new = as_table(old), as_table(new)
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    if "name" in old and new.get("name", old["name"]) != old["name"]:
        return new
    return {**old, **{key: lay(old.get(key), value) for key, value in new.items()}}


def without(table: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What a table says and the other does not say as well.

    >>> without({"rounds": 5, "training": {"lr": 1, "epochs": 2}}, {"rounds": 7, "training": {"lr": 1}})
    {'rounds': 5, 'training': {'epochs': 2}}
    """
    kept = {}
    for key, value in table.items():
        inner, others = as_table(value), other.get(key)
        if isinstance(inner, Mapping) and isinstance(others, Mapping):
            kept[key] = without(inner, others)
        elif key not in other or value != others:
            kept[key] = value
    return kept


def as_table(value: Any) -> Any:
    """A part or section as a table; of an object, what it was given: the rest is the profile's to decide."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, BaseModel):
        return value
    whole = value.model_dump(mode="json", exclude_none=True)
    return {key: own for key, own in whole.items() if key in value.model_fields_set | {"name"}}


def name_in(value: Any) -> str | None:
    """The name of the component that a setting says, where it says one."""
    table = as_table(value)
    name = table.get("name") if isinstance(table, Mapping) else None
    return name if isinstance(name, str) else None


def spell_out(base: type[Component], value: Any) -> Any:
    """A component as a table; ``name:VALUE`` is the component ``name`` with an option set."""
    table, (head, _, _) = as_table(value), (name_in(value) or "").partition(":")
    return {"name": head, **identify(base, table)[1]} if head in available(base.room) else table
