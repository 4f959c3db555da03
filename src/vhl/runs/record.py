"""What is known of one round."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """One round's measurements; a line of ``metrics.jsonl``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int = Field(description="rounds done, from 1")
    accuracy: float | None = Field(None, description="server model on the test set, argmax over all outputs")
    natural_accuracy: float | None = Field(None, description="the same, argmax over the natural outputs")
    validation_accuracy: float | None = Field(None, description="as accuracy, on the validation set")
    per_class: list[float | None] | None = Field(None, description="accuracy of each class")
    tested: int | None = Field(
        None, description="test images behind these, where sites did not answer for all of them"
    )
    loss: dict[str, float] = Field(description="each term of the objective, mean over the clients' steps")
    train_accuracy: float | None = Field(description="clients' own natural samples, while training")
    virtual_accuracy: float | None = Field(None, description="virtual samples, while training")
    drift: float = Field(description="mean distance of the clients' parameters from their average")
    learning_rate: float = Field(description="mean over the round's clients")
    samples: int = Field(
        description="images trained on in this round, natural and virtual, a mosaic as one; a server's "
        "distillation too"
    )
    compute: float = Field(description="multiply-adds of a step relative to plain FedAvg")
    distillation_steps: int | None = Field(None, description="of the server, after it averaged")
    bytes: int = Field(description="sent down and up in this round")
    clients: list[int] = Field(description="clients chosen")
    left_out: list[int] = Field(
        default_factory=list, description="of these, not averaged: non-finite, or without an answer"
    )
    seconds: float = Field(description="wall time of the round, evaluation included")
    side_by_side: int | None = Field(
        None,
        description="runs that this command trained meanwhile: their work is in the wall time too",
    )
