"""Looking at a model: accuracy on a whole set, and the features of a few samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.models.vectors import FlatModel
from vhl.training.capture import Captured, CaptureError, Place
from vhl.training.precision import Numerics
from vhl.training.stream import Stream

_BATCH = 500
_GPU_BATCH = 2_000


@dataclass(frozen=True)
class Evaluation:
    """Counts on a whole set: rows are true classes, columns predicted outputs."""

    confusion: Tensor
    """Argmax over all outputs: (natural classes × outputs)."""
    natural_confusion: Tensor
    """Argmax over the natural outputs alone: (natural classes × natural classes)."""

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

    tested: int | None = None
    """Test images that were counted last, where sites did not answer for all of them."""

    def __init__(
        self, model: FlatModel, numerics: Numerics, sets: Mapping[str, Stream], classes: int, capture: bool
    ) -> None:
        self._model, self._numerics, self._sets, self._classes = model, numerics, sets, classes
        self._capture = capture
        self._place = Place(numerics.device) if numerics.device.type == "cuda" else None
        self._counts: dict[str, tuple[Tensor, Tensor]] = {}
        self._run: Callable[[], None] | None = None

    def start(self, server: Server) -> Fetch:
        """Evaluate this server; the counts are fetched when they are there."""
        with nullcontext() if self._place is None else self._place.work(), self._numerics.active():
            self._model.load(server.parameters, server.buffers)
            if self._run is None:
                self._run = self._prepared()
            self._run()
            return Fetch(
                {f"{name}.{i}": c for name, pair in self._counts.items() for i, c in enumerate(pair)}
            )

    @staticmethod
    def read(counts: Mapping[str, Tensor], name: str) -> Evaluation:
        """The evaluation of a set from what was fetched."""
        return Evaluation(counts[f"{name}.0"], counts[f"{name}.1"])

    def _prepared(self) -> Callable[[], None]:
        if self._place is None or not self._capture:
            return self._count
        try:
            return Captured(self._count, self._place)
        except CaptureError:  # what the clients' steps have said already
            return self._count

    def _count(self) -> None:
        for name, stream in self._sets.items():
            found = evaluate(self._model, stream, self._classes, self._numerics)
            for place, count in zip(self._counts.setdefault(name, found), found, strict=True):
                place.copy_(count)


class Fetch:
    """Tensors on their way to the host."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Enqueued on the current stream, without waiting."""
        self._arrived: torch.cuda.Event | None = None
        self._tensors = {name: self._fetch(tensor) for name, tensor in tensors.items()}
        if any(tensor.is_cuda for tensor in tensors.values()):
            self._arrived = torch.cuda.current_stream().record_event()

    def _fetch(self, tensor: Tensor) -> Tensor:
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


@torch.no_grad()
def evaluate(model: FlatModel, stream: Stream, classes: int, numerics: Numerics) -> tuple[Tensor, Tensor]:
    """Counts of the bound model over a whole set, in evaluation mode: over all outputs, over natural ones."""
    model.module.eval()
    device = stream.labels.device
    everything: Tensor | None = None
    natural = torch.zeros(classes, classes, device=device)
    size = _BATCH if device.type == "cpu" else _GPU_BATCH
    for start in range(0, len(stream), size):
        index = torch.arange(start, min(start + size, len(stream)), device=device)
        with numerics.autocast():
            _, logits = model.module(stream.batch(index, {}).to(numerics.compute_dtype))
        if everything is None:
            everything = natural.new_zeros(classes, logits.shape[1])
        everything += _table(stream.labels[index], logits.argmax(1), everything)
        natural += _table(stream.labels[index], logits[:, :classes].argmax(1), natural)
    assert everything is not None
    return everything.long(), natural.long()


def _table(labels: Tensor, predicted: Tensor, like: Tensor) -> Tensor:
    """How often each (label, prediction) occurs: a product of indicators, for bincount needs the host."""
    rows, columns = (torch.arange(length, device=like.device) for length in like.shape)
    return (labels[None] == rows[:, None]).float() @ (predicted[:, None] == columns[None]).float()


@torch.no_grad()
def look(model: FlatModel, stream: Stream, index: Tensor, numerics: Numerics) -> dict[str, Tensor]:
    """Features (tap ``last``), logits and labels of chosen samples, on the CPU."""
    model.module.eval()
    features, logits = [], []
    for part in torch.split(index, _BATCH):
        with numerics.active(), numerics.autocast():
            taps, out = model.module(stream.batch(part, {}).to(numerics.compute_dtype))
        features.append(taps["last"].flatten(1).to("cpu", numerics.dtype))
        logits.append(out.to("cpu", numerics.dtype))
    return {
        "features": torch.cat(features),
        "logits": torch.cat(logits),
        "labels": stream.labels[index].cpu(),
    }


def moments(
    model: FlatModel, stream: Stream, index: Tensor, classes: int, numerics: Numerics
) -> dict[str, Tensor]:
    """Of the features of chosen samples, class by class: how many, their sum and the sum of their products.

    Those of several clients add up to those of all their samples together.
    """
    seen = look(model, stream, index, numerics)
    features, labels = seen["features"].double(), seen["labels"]
    own = [features[labels == label] for label in range(classes)]
    return {
        "counts": torch.tensor([len(part) for part in own], dtype=torch.float64),
        "sums": torch.stack([part.sum(0) for part in own]),
        "products": torch.stack([part.T @ part for part in own]),
    }
