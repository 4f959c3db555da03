"""What the server asks of a site and what the site says back, beside the vectors; checked on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vhl.deploy.wire import RefusedError


class Said(BaseModel):
    """What came over the network: as strict as can be, and of these fields alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join([cls.__name__.lower(), *map(str, first["loc"])])
            raise RefusedError(f"{where}: {first['msg']}") from None


class Request(Said):
    """What the server asks of a site: local training in one round, or a look at a model."""

    round: int = Field(ge=0)
    """Rounds done before it."""
    rate: float = Field(ge=0)
    state: int | None = None
    """The order after which the site's own state counts; none if it is to begin anew."""


class Sight(Said):
    """What an answer is about: a look at the server's model, by a site with so many training images."""

    run: str
    round: int
    samples: int


class Report(Sight):
    """What came of local training, but for the vectors."""

    totals: dict[str, float]
    """Sums over steps: each loss term, and right predictions."""
    keeps_state: bool
    """Whether the site has kept something for its next order."""
    lost_state: bool
    """Whether the state that the order names was not there."""


class Complaint(Said):
    """Why a site did not do what it was asked."""

    code: str = Field(max_length=20)
    sentence: str = Field(max_length=200)
