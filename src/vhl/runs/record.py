"""What is known of one round, and the file of a run that has a line of it for each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vhl.errors import VHLError
from vhl.files import cannot_write, write_bytes

METRICS = "metrics.jsonl"


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
    server: dict[str, float] | None = Field(
        None, description="what the method's stage on the server says of itself, by name"
    )
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

    @model_validator(mode="before")
    @classmethod
    def _read_version_0_1(cls, given: Any) -> Any:
        """It had a field of its own for the one thing that a server said: the steps of its distillation."""
        if not isinstance(given, dict) or "distillation_steps" not in given:
            return given
        steps = given["distillation_steps"]
        rest = {name: value for name, value in given.items() if name != "distillation_steps"}
        return rest if steps is None else {**rest, "server": {"distillation_steps": steps}}


def read_records(file: Path) -> list[Record]:
    """The rounds so far; a line that a kill cut short is not one."""
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise VHLError(f"{file} cannot be read ({error.strerror}).") from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError:
            raise VHLError(f"{file} is damaged: line {number} is no record of a round.") from None
    return records


def append_record(file: Path, record: Record) -> None:
    try:
        with file.open("a", encoding="utf-8") as metrics:
            metrics.write(_line(record))
            metrics.flush()
            os.fsync(metrics.fileno())
    except OSError as error:
        raise cannot_write(file, error) from None


def write_records(file: Path, records: Sequence[Record]) -> None:
    write_bytes(file, "".join(map(_line, records)).encode())


def _line(record: Record) -> str:
    """Unlike pydantic's JSON this keeps infinities: a diverging run must stay readable."""
    return json.dumps(record.model_dump(), separators=(",", ":")) + "\n"
