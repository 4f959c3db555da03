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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, BeforeValidator, ValidationError

from vhl.config.component import Component
from vhl.errors import VHLError

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


def name_of(cls: type) -> str:
    """The name under which a component class is found again."""
    for room in ROOMS:
        for name, entry in available(room).items():
            if (entry.module, entry.attribute) == (cls.__module__, cls.__qualname__):
                return name
    return _names.get(cls, f"{cls.__module__}:{cls.__qualname__}")


_installed_only = ContextVar("installed_only", default=False)


@contextmanager
def installed_only() -> Iterator[None]:
    """Find installed components alone: a name that came by network must not load code."""
    token = _installed_only.set(True)
    try:
        yield
    finally:
        _installed_only.reset(token)


_elsewhere: dict[str, Path] = {}


def remember_file(place: str, file: Path) -> None:
    """Where a file of the user's own lies, should it not be in the current folder."""
    _elsewhere[place] = file


def own_file(place: str) -> Path:
    """A file of the user's own, by the path that was given."""
    return Path(place) if Path(place).is_file() else _elsewhere.get(place, Path(place))


def find(room: str, name: str) -> Any:
    """The class called ``name``, or what ``FILE.py:CLASS`` or ``package.module:CLASS`` points to."""
    if name in available(room):
        loaded = available(room)[name].load()
        _names.setdefault(loaded, name)  # a package may register a class that it defines elsewhere
        return loaded
    if ":" in name:
        if _installed_only.get():
            raise VHLError(f"{name!r} is no part of the package installed here.")
        place = name.rpartition(":")[0]
        return _load_own(name, own_file(place).resolve() if place.endswith(".py") else None)
    singular = room.removesuffix("s")
    if name.endswith(".py"):
        raise VHLError(f"{name!r} is a file; add the class in it that you mean, as in {name}:MyClass.")
    raise VHLError(f"There is no {singular} called {name!r}{suggest(name, available(room))}")


@cache
def _load_own(name: str, file: Path | None) -> Any:
    place, _, attribute = name.rpartition(":")
    module = _load_file(file, place) if file is not None else _import(place, name)
    try:
        loaded = getattr(module, attribute)
    except AttributeError:
        raise VHLError(
            f"{place} defines no {attribute!r}; check the name after the colon in {name!r}."
        ) from None
    if isinstance(loaded, type):
        _names[loaded] = name
    return loaded


def _load_file(file: Path, place: str) -> ModuleType:
    if not file.is_file():
        raise VHLError(f"{place} does not exist; give the path of your file relative to the current folder.")
    spec = importlib.util.spec_from_file_location(f"vhl_own_{file.stem}", file)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic resolves annotations through it
    spec.loader.exec_module(module)
    return module


def _import(place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (ImportError, TypeError, ValueError):  # the last two for ``.module:CLASS`` and ``:CLASS``
        raise VHLError(f"{name!r} names neither a component nor a module that can be imported.") from None


def suggest(word: str, options: Iterable[str], lists: str = "vhl help") -> str:
    """The end of an error message: the nearest valid name, or all of them where none is near.

    Where they are too many, the command ``lists`` shows them.
    """
    options = list(options)
    if not options:
        return "; it takes none."
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    if len(options) > 20:
        return f"; `{lists}` lists them."
    return f"; choose from {', '.join(sorted(options))}."


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
    cls, singular = find(room, name), room.removesuffix("s")
    is_component = isinstance(cls, type) and issubclass(cls, Component)
    base = getattr(importlib.import_module(f"{ROOMS[room]}.base"), singular.capitalize())
    if room == "models" and callable(cls) and not is_component:
        from vhl.models.base import factory_model

        cls = factory_model(name, cls)
    elif not (is_component and issubclass(cls, base)):
        raise VHLError(f"{name} is no {singular}; subclass {base.__module__}.{base.__name__}.")
    else:
        _refuse_mistyped(name, cls, base)
    return cls, options


def _refuse_mistyped(name: str, cls: type, base: type) -> None:
    """A method called almost like one of the base's would never be called, and nobody would see it."""
    theirs = set(dir(base)) - set(dir(Component))
    for method in sorted(set(dir(cls)) - set(dir(base))):
        near = difflib.get_close_matches(method, theirs, n=1, cutoff=0.8)
        if near and not method.startswith("_"):
            raise VHLError(
                f"{name} defines {method!r}, which vhl never calls; did you mean {near[0]!r}? "
                "If not, give it another name, or an underscore in front."
            )


def part(room: str, where: str, default: str | None = None) -> BeforeValidator:
    """A pydantic validator for a field that holds a component of ``room``; ``where`` is its dotted key."""
    return BeforeValidator(lambda given: build(room, where, given, default))


def explain(error: ValidationError, where: str, cls: type[BaseModel]) -> VHLError:
    """Turn pydantic's first complaint into one sentence with the dotted key and the nearest valid name."""
    first = error.errors()[0]
    steps = [str(step) for step in first["loc"] if step not in ("int", "float")]  # branches of a union
    key = ".".join([where, *steps] if where else steps)
    if first["type"] == "missing":
        description = _holder(cls, steps).model_fields[steps[-1]].description
        return VHLError(f"{key} must be set{f': {description}' if description else ''}.")
    if first["type"] == "extra_forbidden":
        holder, place = _holder(cls, steps), key.rpartition(".")[0]
        place = f"{place} = {name_of(holder)}" if issubclass(holder, Component) else place
        fields = [field for field in holder.model_fields if field != "name"]
        return VHLError(f"{place} has no option {steps[-1]!r}{suggest(steps[-1], fields)}")
    message = first["msg"].removeprefix("Value error, ")
    given = repr(first["input"]) if steps else name_of(cls)  # no steps: a rule about several options
    return VHLError(f"{key} = {given}: {message[0].lower()}{message[1:].rstrip('.')}.")


def _holder(cls: Any, steps: Sequence[str]) -> type[BaseModel]:
    """The table, ``cls`` or one inside it, that an option belongs to."""
    for step in steps[:-1]:
        cls = cls.model_fields[step].annotation
    return cls  # type: ignore[no-any-return]
