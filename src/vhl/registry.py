"""Finding components by name: built in, from another package, or from a user's own file.

A built-in component's name is its module (``vhl.algorithms.fedprox`` is ``fedprox``); a module that holds a
family gives each class its own lower-case name (``resnet18``). Listing reads the source text, so it needs no
import of torch. Other packages register through the entry-point groups ``vhl.algorithms`` and so on; a
user's own file is ``my_method.py:MyMethod``.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, BeforeValidator, ValidationError

from vhl.component import Component
from vhl.errors import VHLError

ROOMS = {
    "sources": "vhl.data.sources",
    "partitions": "vhl.data.partitions",
    "generators": "vhl.virtual",
    "models": "vhl.models",
    "objectives": "vhl.objectives",
    "distances": "vhl.distances",
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
    for file in sorted((Path(__file__).parent / Path(*package.split(".")[1:])).glob("*.py")):
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


def name_of(cls: type) -> str:
    """The name under which a component class is found again."""
    for room in ROOMS:
        for name, entry in available(room).items():
            if (entry.module, entry.attribute) == (cls.__module__, cls.__qualname__):
                return name
    return _names.get(cls, f"{cls.__module__}:{cls.__qualname__}")


def find(room: str, name: str) -> Any:
    """The class called ``name``, or what ``FILE.py:CLASS`` or ``package.module:CLASS`` points to."""
    if name in available(room):
        return available(room)[name].load()
    if ":" in name:
        return _load_own(name)
    singular = room.removesuffix("s")
    raise VHLError(f"There is no {singular} called {name!r}{suggest(name, available(room))}")


@cache
def _load_own(name: str) -> Any:
    place, _, attribute = name.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place, name)
    try:
        loaded = getattr(module, attribute)
    except AttributeError:
        raise VHLError(
            f"{place} defines no {attribute!r}; check the name after the colon in {name!r}."
        ) from None
    if isinstance(loaded, type):
        _names[loaded] = name
    return loaded


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise VHLError(f"{file} does not exist; give the path of your file relative to the current folder.")
    spec = importlib.util.spec_from_file_location(f"vhl_own_{file.stem}", file.resolve())
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic resolves annotations through it
    spec.loader.exec_module(module)
    return module


def _import(place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ImportError:
        raise VHLError(f"{name!r} names neither a component nor a module that can be imported.") from None


def suggest(word: str, options: Iterable[str]) -> str:
    """The end of an error message: the nearest valid name, or all of them where none is near."""
    options = list(options)
    if not options:
        return "; it takes none."
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; choose from {', '.join(sorted(options))}."


def build(room: str, where: str, given: Any, default: str | None = None) -> Component:
    """Make a component from ``"name"``, ``"name:VALUE"`` or a table (without a name: of ``default``)."""
    if isinstance(given, Component):
        return given
    table = {"name": given} if isinstance(given, str) else given
    if default is not None and isinstance(table, Mapping):
        table = {"name": default, **table}
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise VHLError(f"{where} must be a name or a table with a name, not {given!r}.")
    cls, options = identify(room, table)
    try:
        return cls(**options)
    except ValidationError as error:
        raise explain(error, where, cls) from None


def identify(room: str, table: Mapping[str, Any]) -> tuple[type[Component], dict[str, Any]]:
    """The class a table names and the options it sets; ``name:VALUE`` sets the class's primary option."""
    name, options = table["name"], {k: v for k, v in table.items() if k != "name"}
    head, _, value = name.partition(":")
    if value and head in available(room):
        cls = find(room, head)
        if cls.primary is None:
            raise VHLError(f"{head} takes no value after a colon; write {head} alone instead of {name!r}.")
        return cls, {cls.primary: value, **options}
    cls = find(room, name)
    if not (isinstance(cls, type) and issubclass(cls, Component)):
        from vhl.models.base import factory_model

        if room != "models" or not callable(cls):
            raise VHLError(f"{name} is no {room.removesuffix('s')}; subclass the one in {ROOMS[room]}.base.")
        cls = factory_model(name, cls)
    return cls, options


def part(room: str, where: str, default: str | None = None) -> BeforeValidator:
    """A pydantic validator for a field that holds a component of ``room``; ``where`` is its dotted key."""
    return BeforeValidator(lambda given: build(room, where, given, default))


def explain(error: ValidationError, where: str, cls: type[BaseModel]) -> VHLError:
    """Turn pydantic's first complaint into one sentence with the dotted key and the nearest valid name."""
    first = error.errors()[0]
    key = ".".join(str(step) for step in (*([where] if where else []), *first["loc"]))
    if first["type"] == "extra_forbidden":
        fields = [f for f in cls.model_fields if f != "name"]
        place = f"{where} = {name_of(cls)}" if issubclass(cls, Component) else (where or "an experiment")
        return VHLError(f"{place} has no option {first['loc'][-1]!r}{suggest(str(first['loc'][-1]), fields)}")
    message = first["msg"].removeprefix("Value error, ")
    if not key:
        return VHLError(message)
    return VHLError(f"{key} = {first['input']!r}: {message[0].lower()}{message[1:].rstrip('.')}.")
