"""What an objective is: the loss of one local batch, and what it needs for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from vhl.config.component import Component
from vhl.errors import VHLError
from vhl.objectives.virtual_batch import VirtualBatch

if TYPE_CHECKING:
    from torch import Tensor


def _no_chance(shape: tuple[int, ...]) -> Tensor:
    raise VHLError("This batch was made without a source of chance; give it `normal`.")


@dataclass(frozen=True)
class Batch:
    """What a model made of one batch: natural rows first, virtual rows after them."""

    features: Mapping[str, Tensor]
    """By tap, (rows, ...), in the precision the network computed them in."""
    logits: Tensor
    """In full precision."""
    labels: Tensor
    """Of the natural rows."""
    weights: Tensor
    """Of the natural rows: 1, or 0 for a filler, which must not enter any loss."""
    classes: int
    """Natural classes C_d."""
    virtual_labels: Tensor | None = None
    """Of the virtual rows, 0 to C_v − 1."""
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    """What :meth:`Objective.shared` made: the same for all clients."""
    size: int = 0
    """Natural rows of a whole batch, of which an epoch's last may have fewer; unset, this one is whole."""
    normal: Callable[[tuple[int, ...]], Tensor] = _no_chance
    """Standard normal numbers of a shape: this step's own, the same on every device."""


class Pretraining(BaseModel):
    """Supervised training on the virtual set alone, before the first round."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(5, ge=1, description="passes over the virtual set")
    lr: float = Field(0.01, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum")


class Objective(Component):
    """The loss that clients minimise, whatever the federated algorithm; the base for plain training."""

    room: ClassVar[str] = "objectives"

    uses_virtual: ClassVar[bool] = False
    """Whether it needs the virtual set."""

    def virtual_images(self, natural: int) -> VirtualBatch | None:
        """The virtual images that join each batch of ``natural`` images, if any do."""
        return None

    def taps(self) -> tuple[str, ...]:
        """The features that the loss reads."""
        return ("last",)

    @property
    def pretraining(self) -> Pretraining | None:
        """A stage on the virtual set before the first round."""
        return None

    def outputs(self, classes: int, virtual_classes: int) -> int:
        """Width of the classifier for C_d natural and C_v virtual classes."""
        return classes

    def virtual_targets(self, virtual_labels: Tensor, classes: int) -> Tensor:
        """The outputs that stand for these virtual labels."""
        return virtual_labels

    def shared(self, classes: int, features: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
        """Constants that all clients share, drawn once; ``features`` is the length of each tap."""
        return {}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Named terms, their weights included: the loss is their sum."""
        raise NotImplementedError


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Σ w·v / Σ w."""
    return (values * weights).sum() / weights.sum()


def full_precision(features: Tensor) -> Tensor:
    """As 32-bit numbers at least: sums and exponentials need more digits than a network does."""
    return features if features.element_size() >= 4 else features.float()
