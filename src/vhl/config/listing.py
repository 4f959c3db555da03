"""What components there are, by name. Listing reads their source text, so it imports none of them.

A built-in component's name is its module (``vhl.algorithms.fedprox`` is ``fedprox``); a module that holds a
family gives each class its own lower-case name (``resnet18``). Other packages register theirs through the
entry-point groups ``vhl.algorithms`` and so on.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

ROOMS = {
    "sources": "vhl.data.sources",
    "partitions": "vhl.data.partitions",
    "generators": "vhl.virtual",
    "models": "vhl.models",
    "objectives": "vhl.objectives",
    "distances": "vhl.objectives.distances",
    "algorithms": "vhl.algorithms",
}


@dataclass(frozen=True)
class Entry:
    """Where a component is defined, and the first line of its docstring."""

    module: str
    attribute: str
    summary: str

    def load(self) -> Any:
        return getattr(importlib.import_module(self.module), self.attribute)


@cache
def available(room: str) -> dict[str, Entry]:
    """Every component of a room by name, without importing any of them."""
    package = ROOMS[room]
    found: dict[str, Entry] = {}
    for file in sorted((Path(__file__).parents[1] / Path(*package.split(".")[1:])).glob("*.py")):
        if file.stem.startswith("_") or file.stem == "base":
            continue
        classes = _public_subclasses(file)
        for node in classes:
            name = file.stem.replace("_", "-") if len(classes) == 1 else node.name.lower()
            summary = (ast.get_docstring(node) or "").split("\n")[0]
            found[name] = Entry(f"{package}.{file.stem}", node.name, summary)
    for point in entry_points(group=f"vhl.{room}"):
        found[point.name] = Entry(point.module, point.attr, f"from {point.module}")
    return found


def _public_subclasses(file: Path) -> list[ast.ClassDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [n for n in tree.body if isinstance(n, ast.ClassDef) and n.bases and not n.name.startswith("_")]


_names: dict[type, str] = {}


def remember_name(cls: type, name: str) -> None:
    """The name that a class was found by, where its own module does not say it."""
    _names.setdefault(cls, name)


def name_of(cls: type) -> str:
    """The name under which a component class is found again."""
    for room in ROOMS:
        for name, entry in available(room).items():
            if (entry.module, entry.attribute) == (cls.__module__, cls.__qualname__):
                return name
    return _names.get(cls, f"{cls.__module__}:{cls.__qualname__}")
