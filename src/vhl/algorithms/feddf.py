"""FedDF (Lin et al., NeurIPS 2020)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SerializeAsAny

from vhl.algorithms.base import Distillation
from vhl.algorithms.fedavg import FedAvg
from vhl.config.registry import part
from vhl.virtual.base import Generator


class FedDF(FedAvg):
    """FedAvg, then the server distils the round's client models into the average (Lin et al., 2020).

    On unlabelled images it minimises KL(softmax of the clients' mean logits ‖ softmax of its own) by Adam
    with cosine decay, and keeps the state that does best on validation images.
    """

    images: Annotated[SerializeAsAny[Generator], part(Generator, "algorithm.images")] | None = Field(
        None, description="what to distil on, as dataset:cifar100 or noise; unset is fresh noise every step"
    )
    batch_size: int | None = Field(
        None, ge=1, description="images of a step; unset is 64, or 128 of fresh noise"
    )
    steps: int = Field(10_000, ge=1, description="steps a round at most, over which the rate decays")
    lr: float = Field(1e-3, gt=0, description="Adam's learning rate")
    clip: float = Field(5.0, gt=0, description="largest norm of a gradient")
    check_every: int = Field(100, ge=1, description="steps between looks at the validation images")
    patience: int = Field(
        1_000, ge=1, description="steps without gain after which a round's distillation ends"
    )
    keep_average: bool = Field(False, description="let the average itself win where no step is better")

    @property
    def distillation(self) -> Distillation:
        batch = self.batch_size or (128 if self.images is None else 64)
        shared = self.model_dump(include={"steps", "lr", "clip", "check_every", "patience", "keep_average"})
        return Distillation(images=self.images, batch=batch, **shared)
