"""How good a model is on held-out images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.models.vectors import FlatModel
from vhl.rounds.looking import count
from vhl.training.precision import Precision
from vhl.training.static import Place, Static
from vhl.training.streams import Stream


@dataclass(frozen=True)
class Evaluation:
    """Counts on a whole set: rows are true classes, columns predicted outputs."""

    confusion: Tensor
    """Argmax over all outputs: (natural classes × outputs)."""
    natural_confusion: Tensor
    """Argmax over the natural outputs alone: (natural classes × natural classes)."""

    @classmethod
    def read(cls, counts: Mapping[str, Tensor], name: str) -> Evaluation | None:
        """The evaluation of one of several sets, if it is among the counts."""
        return cls(counts[f"{name}.0"], counts[f"{name}.1"]) if f"{name}.0" in counts else None

    @property
    def accuracy(self) -> float:
        """Share of right predictions over all outputs; a virtual prediction is an error."""
        return _share_right(self.confusion)

    @property
    def natural_accuracy(self) -> float:
        return _share_right(self.natural_confusion)

    @property
    def per_class(self) -> list[float | None]:
        """Accuracy of each true class; ``None`` for a class without samples."""
        hits, rows = self.confusion.diagonal().tolist(), self.confusion.sum(1).tolist()
        return [hit / row if row else None for hit, row in zip(hits, rows, strict=True)]


def _share_right(confusion: Tensor) -> float:
    """In double precision: a rounded 0.9 would miss a target of 0.9."""
    return int(confusion.diagonal().sum()) / int(confusion.sum())


class Evaluator:
    """Counts a model's predictions on some sets; on a GPU beside whatever else runs there."""

    def __init__(
        self,
        model: FlatModel,
        precision: Precision,
        sets: Mapping[str, Stream],
        classes: int,
        static: Static | None = None,
    ) -> None:
        self._model, self._precision, self._sets, self._classes = model, precision, sets, classes
        self._place = Place(precision.device) if precision.device.type == "cuda" else None
        self._static = static or Static(record=False)
        self._counts: dict[str, tuple[Tensor, Tensor]] = {}
        self._run: Callable[[], None] | None = None

    def start(self, server: Server) -> Pending:
        """Evaluate this server; pending are two tables of counts for each set.

        ``name.0`` is over all outputs and ``name.1`` over the natural ones.
        """
        with nullcontext() if self._place is None else self._place.work(), self._precision.active():
            self._model.load(server.parameters, server.buffers)
            if self._run is None:
                self._run = self._static(self._count, self._place, "Evaluations")
            self._run()
            return Pending(
                {f"{name}.{i}": c for name, pair in self._counts.items() for i, c in enumerate(pair)}
            )

    def _count(self) -> None:
        for name, stream in self._sets.items():
            found = count(self._model, stream, self._classes, self._precision)
            for place, own in zip(self._counts.setdefault(name, found), found, strict=True):
                place.copy_(own)


class Pending:
    """Numbers on their way to the host."""

    tested: int | None = None
    """Test images that were counted, where sites did not answer for all of them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Enqueued on the current stream, without waiting."""
        self._arrived: torch.cuda.Event | None = None
        self._tensors = {name: self._copied(tensor) for name, tensor in tensors.items()}
        devices = {tensor.device for tensor in tensors.values() if tensor.is_cuda}
        if devices:
            self._arrived = torch.cuda.current_stream(devices.pop()).record_event()

    def _copied(self, tensor: Tensor) -> Tensor:
        """A copy, for the tensor may be counted into again."""
        if not tensor.is_cuda:
            return tensor.clone()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    @property
    def ready(self) -> bool:
        return self._arrived is None or self._arrived.query()

    def get(self) -> dict[str, Tensor]:
        """The tensors on the host, waited for."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensors
