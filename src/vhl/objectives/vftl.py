"""Virtual federated transfer learning: pretrain on the virtual set, then train plainly."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from vhl.objectives.base import Pretraining
from vhl.objectives.plain import Plain


class VFTL(Plain):
    """Pretraining on the virtual set, a fresh classifier, then plain training (VHL, section 5.3)."""

    uses_virtual: ClassVar[bool] = True

    pretrain: Pretraining = Field(Pretraining(), description="the stage before the first round")

    @property
    def pretraining(self) -> Pretraining:
        return self.pretrain
