"""A component: a named part of an experiment whose fields are its configuration."""

from __future__ import annotations

from typing import Any, ClassVar, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from vhl.config.listing import name_of

_UNSET = "unset"  # stands for None where None is not the default: a table cannot hold it


def in_a_list(value: Any) -> Any:
    """Where an option is a list, one value may stand for a list of one, as in ``keep_at=100``."""
    return value if value is None or isinstance(value, list | tuple) else (value,)


class Component(BaseModel):
    """A frozen, validated part of an experiment; saved as a table such as ``{name = "fedprox", mu = 0.1}``.

    Sources, partitions, generators, models, objectives, distances and algorithms are components. The object
    *is* its configuration; tensors never live on it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    room: ClassVar[str]
    """Its list in :mod:`vhl.config.listing`; said by the base class that all in it inherit from."""

    primary: ClassVar[str | None] = None
    """The field that ``NAME:VALUE`` sets, as the path in ``folder:PATH``."""

    release: ClassVar[dict[str, Any]] = {}
    """Values that profile ``release`` (the authors' code) uses where they differ from the defaults."""

    name: str = Field("", description="which one: see `vhl help`, or FILE.py:CLASS for your own")

    @classmethod
    def adopt(cls, name: str, found: Any) -> type[Self] | None:
        """The class of this room that ``found`` is, whatever a user named; none where it is no such class."""
        return found if isinstance(found, type) and issubclass(found, cls) else None

    @model_validator(mode="before")
    @classmethod
    def _read_table(cls, fields: Any) -> Any:
        """Carry the name under which the class is found again, and read ``"unset"``."""
        if not isinstance(fields, dict):
            return fields
        optional = [
            key for key, field in cls.model_fields.items() if type(None) in get_args(field.annotation)
        ]
        unset = {k: None for k in optional if isinstance(fields.get(k), str) and fields[k] == _UNSET}
        return {**fields, **unset, "name": name_of(cls)}

    @model_serializer(mode="wrap")
    def _write_table(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        unset = [
            key for key, field in fields.items() if getattr(self, key) is None and field.default is not None
        ]
        table: dict[str, Any] = write(self)
        return {**table, **dict.fromkeys(unset, _UNSET)}
