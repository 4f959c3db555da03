"""A component: a named part of an experiment whose fields are its configuration."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Component(BaseModel):
    """A frozen, validated part of an experiment; saved as a table such as ``{name = "fedprox", mu = 0.1}``.

    Sources, partitions, generators, models, objectives, distances and algorithms are components. The object
    *is* its configuration; tensors never live on it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    primary: ClassVar[str | None] = None
    """The field that ``NAME:VALUE`` sets, as the path in ``folder:PATH``."""

    release: ClassVar[dict[str, Any]] = {}
    """Values that profile ``release`` (the authors' code) uses where they differ from the defaults."""

    name: str = Field("", description="which one: see `vhl list`, or FILE.py:CLASS for your own")

    @model_validator(mode="before")
    @classmethod
    def _carry_own_name(cls, fields: Any) -> Any:
        from vhl.registry import name_of

        return {**fields, "name": name_of(cls)} if isinstance(fields, dict) else fields
