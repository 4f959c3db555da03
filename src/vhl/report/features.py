"""Where models put images: features in the plane."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vhl.models.files import read_tensors
from vhl.report.figure import Cloud, Points

POINTS = 800
"""Samples in one picture: t-SNE takes seconds for so many."""
_PERPLEXITY = 30.0


def points(
    file: Path, classes: Sequence[str], title: str, models: Sequence[str] = (), most: int = POINTS
) -> Points:
    """Samples of each kind in these models, or in all; not those that diverged."""
    clouds = _clouds(file, file.stat().st_mtime_ns, tuple(models), most)
    there = list(dict.fromkeys(cloud.model for cloud in clouds))
    note = "" if any(cloud.x.size for cloud in clouds) else "diverged"
    return Points(title=title, note=note, models=there, clouds=clouds, classes=classes)


@cache  # a page that is renewed every few seconds must not pay for t-SNE each time
def _clouds(file: Path, changed: int, models: Sequence[str], most: int) -> tuple[Cloud, ...]:
    """The same samples in all models, all together in one plane."""
    tensors, _ = read_tensors(file)
    names = sorted(name.split(".") for name in tensors if name.endswith(".features"))
    groups = [(model, kind) for model, kind, _ in names if not models or model in models]
    groups.sort(key=lambda group: _place(group[0], models))
    if not groups:
        return ()
    chosen = _choose(tensors, most // len(groups))
    values, labels = [], []
    for model, kind in groups:
        own, classes = (tensors[f"{model}.{kind}.{what}"].numpy() for what in ("features", "labels"))
        kept = chosen[kind][np.isfinite(own[chosen[kind]]).all(1)]
        values.append(own[kept])
        labels.append(classes[kept])
    plane = embed(np.concatenate(values)).astype(np.float64).round(2)
    places = np.split(plane, np.cumsum([len(own) for own in labels])[:-1])
    return tuple(
        Cloud(model, kind == "virtual", x=own[:, 0], y=own[:, 1], classes=classes)
        for (model, kind), own, classes in zip(groups, places, labels, strict=True)
    )


def _place(model: str, models: Sequence[str]) -> int:
    """The server's first, or in the order asked for."""
    return models.index(model) if models else int(model != "server")


def _choose(tensors: dict[str, Tensor], share: int) -> dict[str, NDArray[np.int64]]:
    """Numbers of the samples of each kind, of which there are as many in every model."""
    rng = np.random.default_rng(0)
    counts = {name.split(".")[1]: len(found) for name, found in tensors.items() if name.endswith(".labels")}
    return {kind: rng.permutation(counts[kind])[:share] for kind in sorted(counts)}


def embed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """t-SNE (van der Maaten and Hinton, JMLR 2008) of samples, (samples × features)."""
    if len(values) < 2:
        return np.zeros((len(values), 2), np.float32)
    from sklearn.manifold import TSNE  # a second, which nothing else needs

    perplexity = min(_PERPLEXITY, (len(values) - 1) / 3)
    plane: NDArray[np.float32] = TSNE(perplexity=perplexity, random_state=0).fit_transform(values)
    return plane
