"""What objectives share that pull features towards others."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SerializeAsAny, field_validator

from vhl.config.registry import part
from vhl.models.base import ALIASES
from vhl.objectives.base import Objective
from vhl.objectives.distances.base import Distance
from vhl.objectives.distances.supcon import SupCon


class Calibrated(Objective):
    """A pull of weight λ on the features of one tap, by a distance."""

    calibration: float = Field(1.0, ge=0, description="λ: weight of the pull")
    tap: str = Field("last", description="feature to calibrate: last, stage1 ..., or shallow, middle, deep")
    distance: Annotated[SerializeAsAny[Distance], part(Distance, "objective.distance", "supcon")] = Field(
        default_factory=SupCon, description="the distance d of equation 4"
    )

    @field_validator("tap")
    @classmethod
    def _spell_out_alias(cls, tap: str) -> str:
        return ALIASES.get(tap, tap)

    def taps(self) -> tuple[str, ...]:
        return (self.tap,)
