"""CCVR (Luo et al., NeurIPS 2021)."""

from __future__ import annotations

from pydantic import Field

from vhl.algorithms.base import Calibration
from vhl.algorithms.fedavg import FedAvg


class CCVR(FedAvg):
    """FedAvg, and after the last round a classifier retrained on Gaussian features (Luo et al., 2021).

    Every client sends, for each class, how many samples it has and the mean and covariance of the features
    that the server's model makes of them. The server pools them, draws features of each class from
    N(μ_c, Σ_c) and trains the classifier on those alone. Rounds before the last are FedAvg's.
    """

    ends = True

    per_class: int = Field(
        2_000, ge=1, description="features drawn for each class, as in the paper on CIFAR-10"
    )
    epochs: int = Field(10, ge=1, description="passes over them")
    lr: float = Field(0.01, gt=0, description="the classifier's learning rate, with momentum 0.9")
    batch_size: int = Field(64, ge=1, description="features of a step")

    @property
    def calibration(self) -> Calibration:
        return Calibration(self.per_class, self.epochs, self.lr, self.batch_size)
