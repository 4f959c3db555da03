"""What an objective is: the loss of one local batch, and what it needs for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from vhl.config.component import Component
from vhl.errors import VHLError

if TYPE_CHECKING:
    from torch import Tensor


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
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    """What :meth:`Objective.draws` drew for this step."""


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

    def virtual_rows(self, natural: int) -> int:
        """Virtual images that join each batch of ``natural`` images."""
        return 0

    @property
    def tiles(self) -> int:
        """Virtual images to a side of a mosaic: so many squared share the place of one."""
        return 1

    @property
    def tiles_of_one_class(self) -> bool:
        """Whether all tiles of a mosaic have the same label."""
        return False

    def virtual_shape(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Of the virtual images, where natural ones are of ``shape``: tiles are made at their own size."""
        height, width, channels = shape
        if height % self.tiles or width % self.tiles:
            raise VHLError(
                f"objective.mosaic = {self.tiles} must divide images of {height}×{width}; choose a size of "
                "images that it divides, or objective.mosaic=1."
            )
        return height // self.tiles, width // self.tiles, channels

    def virtual_images(self, natural: int) -> int:
        """Places of full size that the virtual images take beside ``natural`` ones."""
        return self.virtual_rows(natural) // self.tiles**2

    def statistics_weights(self, weights: Tensor, virtual: int) -> Tensor | None:
        """How much each image counts in batch-norm statistics; unset, all the same.

        ``weights`` are those of the natural rows, ``virtual`` is the number of virtual places after them.
        """
        return None

    @property
    def weighs_images(self) -> bool:
        """Whether images count differently in batch-norm statistics."""
        import torch  # late: most commands do without

        return self.statistics_weights(torch.ones(1), 1) is not None

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

    def draws(
        self, rng: np.random.Generator, steps: int, batch: int, classes: int, features: Mapping[str, int]
    ) -> dict[str, np.ndarray]:
        """Random numbers of ``steps`` steps, each array with ``steps`` first."""
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
