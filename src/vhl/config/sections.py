"""The sections of an experiment that are no components: training, seeds and engine."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from vhl.config.component import in_a_list


class Section(BaseModel):
    """A frozen, validated table of settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    release: ClassVar[dict[str, Any]] = {}
    """Values that profile ``release`` (the authors' code) uses where they differ from the defaults."""


class Training(Section):
    """Local training: stochastic gradient descent at each client."""

    release = {"decay_per": "participation", "keep_momentum": True}

    epochs: int = Field(1, ge=1, description="E: passes over the client's data a round")
    batch_size: int = Field(128, ge=1, description="B_d: natural images in each batch")
    lr: float = Field(0.01, gt=0, description="learning rate η of the first round")
    lr_decay: float = Field(0.992, gt=0, le=1, description="factor on the learning rate")
    decay_per: Literal["round", "participation"] = Field(
        "round", description="apply it each round, or each time that client took part"
    )
    lr_drops: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="rounds after each of which the learning rate falls to a tenth"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum m")
    keep_momentum: bool = Field(False, description="a client keeps its momentum between its rounds")
    weight_decay: float = Field(1e-4, ge=0, description="weight decay, on all parameters")
    freeze_batch_norm: int | None = Field(
        None,
        ge=0,
        description="rounds after which batch-norm statistics stay as they are; unset is never. Training "
        "may diverge then unless its learning rate drops",
    )

    _list = field_validator("lr_drops", mode="before")(in_a_list)

    def freezes(self, round_: int) -> bool:
        """Whether networks are trained with the server's batch-norm statistics in this round, counted from 0.

        After the first rounds, as FixBN does (Zhong et al., arXiv 2303.06530).
        """
        return self.freeze_batch_norm is not None and round_ >= self.freeze_batch_norm

    def not_reached(self, rounds: int) -> dict[str, int]:
        """Options that change training after a round, but not in so few rounds; with that round."""
        changes = {"freeze_batch_norm": self.freeze_batch_norm, "lr_drops": max(self.lr_drops, default=None)}
        return {name: after for name, after in changes.items() if after is not None and after >= rounds}


class Seeds(Section):
    """One seed for each kind of chance; ``--seeds`` varies all but the data's."""

    data: int = Field(
        0, ge=0, lt=2**32, description="partition, splits, virtual set: another one is another problem"
    )
    model: int = Field(0, ge=0, lt=2**32, description="initial weights")
    sampling: int = Field(0, ge=0, lt=2**32, description="which clients take part in a round")
    batches: int = Field(0, ge=0, lt=2**32, description="order of samples, crops, flips")


Precision = Literal["fp64", "fp32", "tf32", "bf16"]


class Engine(Section):
    """How a run is computed: its speed and memory, and of its numbers the rounding alone."""

    precision: Precision | None = Field(
        None, description="fp64, fp32, tf32 or bf16; unset is bf16 on a GPU that has it, fp32 elsewhere"
    )
    capture: bool | None = Field(
        None, description="replay whole training steps as CUDA graphs; unset does so on a GPU"
    )
    kernels: bool | None = Field(
        None, description="batch norm, input and optimiser as kernels of ours; unset does so on a GPU"
    )
    compile: bool | None = Field(
        None, description="PyTorch's compiler for the rest; unset does so for a network without our layers"
    )
    lanes: int | None = Field(
        None,
        ge=1,
        description="clients trained side by side; unset is 1, on a GPU up to 4 as memory allows",
    )
    deterministic: bool = Field(
        False, description="the same bits every time, whatever the number of lanes; slower on a GPU"
    )
    state_memory: float = Field(
        8.0,
        ge=0,
        description="GB of GPU memory for what clients keep between rounds; more lies on the host",
    )
