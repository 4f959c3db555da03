"""Finding a component's class by its name, and making the component.

A name is one of the :mod:`~vhl.config.listing`, or says where a class of the user's own is:
``my_method.py:MyMethod`` in a file, ``package.module:MyMethod`` in an installed module.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from vhl.config.component import Component
from vhl.config.listing import available, name_of, remember_name
from vhl.errors import VHLError

C = TypeVar("C", bound=Component)


def build(base: type[C], where: str, given: Any, default: str | None = None) -> C:
    """Make a component from ``"name"``, ``"name:VALUE"`` or a table (without a name: of ``default``).

    ``base`` is what components of its room inherit from, ``where`` the dotted key that a complaint names.
    """
    if isinstance(given, base):
        return given
    table = {"name": given} if isinstance(given, str) else given
    if default is not None and isinstance(table, Mapping):
        table = {"name": default, **table}
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise VHLError(f"{where} must be a name or a table with a name, not {given!r}.")
    cls, options = identify(base, table)
    try:
        return cls(**options)
    except ValidationError as error:
        raise explain(error, where, cls) from None


def part(base: type[Component], where: str, default: str | None = None) -> BeforeValidator:
    """A pydantic validator for a field that holds a component; ``where`` is its dotted key."""
    return BeforeValidator(lambda given: build(base, where, given, default))


def identify(base: type[C], table: Mapping[str, Any]) -> tuple[type[C], dict[str, Any]]:
    """The class a table names and the options it sets; ``name:VALUE`` sets the class's primary option."""
    name, options = table["name"], {k: v for k, v in table.items() if k != "name"}
    head, _, value = name.partition(":")
    if not value or head not in available(base.room):
        return find(base, name), options
    cls = find(base, head)
    if cls.primary is None:
        raise VHLError(f"{head} takes no value after a colon; write {head} alone instead of {name!r}.")
    return cls, {cls.primary: value, **options}


def find(base: type[C], name: str) -> type[C]:
    """The class of ``base``'s room that is called ``name``."""
    found = _load(base.room, name)
    cls = base.adopt(name, found)
    if cls is None:
        raise VHLError(f"{name} is no {_one_of(base.room)}; subclass {base.__module__}.{base.__name__}.")
    _refuse_mistyped(name, cls, base)
    remember_name(cls, name)
    return cls


def _one_of(room: str) -> str:
    return room.removesuffix("s")


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


_installed_only = ContextVar("installed_only", default=False)


@contextmanager
def installed_only() -> Iterator[None]:
    """Find installed components alone: a name that came by network must not load code."""
    token = _installed_only.set(True)
    try:
        yield
    finally:
        _installed_only.reset(token)


def _load(room: str, name: str) -> Any:
    """What is called ``name``, whatever it is."""
    if name in available(room):
        return available(room)[name].load()
    if ":" in name:
        if _installed_only.get():
            raise VHLError(f"{name!r} is no part of the package installed here.")
        place = name.rpartition(":")[0]
        return _load_own(name, own_file(place).resolve() if place.endswith(".py") else None)
    if name.endswith(".py"):
        raise VHLError(f"{name!r} is a file; add the class in it that you mean, as in {name}:MyClass.")
    raise VHLError(f"There is no {_one_of(room)} called {name!r}{suggest(name, available(room))}")


_elsewhere: dict[str, Path] = {}


def remember_file(place: str, file: Path) -> None:
    """Where a file of the user's own lies, should it not be in the current folder."""
    _elsewhere[place] = file


def own_file(place: str) -> Path:
    """A file of the user's own, by the path that was given."""
    return Path(place) if Path(place).is_file() else _elsewhere.get(place, Path(place))


@cache
def _load_own(name: str, file: Path | None) -> Any:
    place, _, attribute = name.rpartition(":")
    module = _load_file(file, place) if file is not None else _import(place, name)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise VHLError(
            f"{place} defines no {attribute!r}; check the name after the colon in {name!r}."
        ) from None


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
