"""Looking at a model: accuracy on a whole set, and the features of a few samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vhl.engine.stream import Stream
from vhl.engine.vectors import FlatModel

_BATCH = 500


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


@torch.no_grad()
def evaluate(model: FlatModel, stream: Stream, classes: int) -> Evaluation:
    """Run the bound model over a whole set, in evaluation mode."""
    model.module.eval()
    everything: Tensor | None = None
    natural = torch.zeros(classes, classes, dtype=torch.int64, device=stream.labels.device)
    for start in range(0, len(stream), _BATCH):
        index = torch.arange(start, min(start + _BATCH, len(stream)), device=stream.labels.device)
        _, logits = model.module(stream.batch(index, {}))
        if everything is None:
            everything = natural.new_zeros(classes, logits.shape[1])
        everything += _count(stream.labels[index], logits.argmax(1), everything)
        natural += _count(stream.labels[index], logits[:, :classes].argmax(1), natural)
    assert everything is not None
    return Evaluation(everything.cpu(), natural.cpu())


def _count(labels: Tensor, predicted: Tensor, like: Tensor) -> Tensor:
    rows, columns = like.shape
    return torch.bincount(labels * columns + predicted, minlength=rows * columns).view(rows, columns)


@torch.no_grad()
def look(model: FlatModel, stream: Stream, index: Tensor) -> dict[str, Tensor]:
    """Features (tap ``last``), logits and labels of chosen samples, on the CPU."""
    model.module.eval()
    features, logits = [], []
    for part in torch.split(index, _BATCH):
        taps, out = model.module(stream.batch(part, {}))
        features.append(taps["last"].flatten(1).cpu())
        logits.append(out.cpu())
    return {
        "features": torch.cat(features),
        "logits": torch.cat(logits),
        "labels": stream.labels[index].cpu(),
    }
