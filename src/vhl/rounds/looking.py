"""Looking at a model: its predictions on a whole set, counted, and its features of chosen samples."""

from __future__ import annotations

import torch
from torch import Tensor

from vhl.models.vectors import FlatModel
from vhl.training.precision import Precision
from vhl.training.streams import Stream

_BATCH = 500
_GPU_BATCH = 2_000


@torch.no_grad()
def count(model: FlatModel, stream: Stream, classes: int, precision: Precision) -> tuple[Tensor, Tensor]:
    """Counts of the bound model over a whole set, in evaluation mode: over all outputs, over natural ones."""
    model.module.eval()
    device = stream.labels.device
    everything: Tensor | None = None
    natural = torch.zeros(classes, classes, device=device)
    size = _BATCH if device.type == "cpu" else _GPU_BATCH
    for start in range(0, len(stream), size):
        index = torch.arange(start, min(start + size, len(stream)), device=device)
        with precision.autocast():
            _, logits = model.module(stream.batch(index, {}).to(precision.compute_dtype))
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
def look(model: FlatModel, stream: Stream, index: Tensor, precision: Precision) -> dict[str, Tensor]:
    """Features (tap ``last``), logits and labels of chosen samples, on the CPU."""
    model.module.eval()
    features, logits = [], []
    for part in torch.split(index, _BATCH):
        with precision.active(), precision.autocast():
            taps, out = model.module(stream.batch(part, {}).to(precision.compute_dtype))
        features.append(taps["last"].flatten(1).to("cpu", precision.dtype))
        logits.append(out.to("cpu", precision.dtype))
    return {
        "features": torch.cat(features),
        "logits": torch.cat(logits),
        "labels": stream.labels[index].cpu(),
    }


def moments(
    model: FlatModel, stream: Stream, index: Tensor, classes: int, precision: Precision
) -> dict[str, Tensor]:
    """Of the features of chosen samples, class by class: how many, their sum and the sum of their products.

    Those of several clients add up to those of all their samples together.
    """
    seen = look(model, stream, index, precision)
    features, labels = seen["features"].double(), seen["labels"]
    own = [features[labels == label] for label in range(classes)]
    return {
        "counts": torch.tensor([len(part) for part in own], dtype=torch.float64),
        "sums": torch.stack([part.sum(0) for part in own]),
        "products": torch.stack([part.T @ part for part in own]),
    }
