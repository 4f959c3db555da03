"""What a virtual set is like: how well its classes can be told apart, and a picture of some images."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from vhl.data.images import ImageSet

_PROBE_IMAGES, _PROBE_PIXELS = 4_000, 3_072  # what the linear probe looks at, at most


def separability(images: ImageSet, seed: int = 0) -> float:
    """Accuracy of a linear probe, fitted to three quarters of the images, on the others.

    Ridge regression from raw pixels to one-hot labels, W = Xᵀ(XXᵀ + aI)⁻¹Y with a = 1 % of the mean of
    XXᵀ's diagonal, on a sample of the images (and of the pixels of large ones): it takes about a second.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(images))[:_PROBE_IMAGES]
    flat = images.images.reshape(len(images), -1)
    columns = np.sort(rng.permutation(flat.shape[1])[:_PROBE_PIXELS])
    inputs = flat[np.ix_(chosen, columns)].astype(np.float32) / 255
    classes, targets = np.unique(images.labels[chosen], return_inverse=True)
    fitted = math.ceil(len(chosen) * 0.75)
    inputs -= inputs[:fitted].mean(0)
    gram = inputs @ inputs[:fitted].T
    penalty = 0.01 * np.trace(gram[:fitted]) / fitted + 1e-6
    one_hot = np.eye(len(classes), dtype=np.float32)[targets[:fitted]]
    weights = np.linalg.solve(gram[:fitted] + penalty * np.eye(fitted, dtype=np.float32), one_hot)
    return float((np.argmax(gram[fitted:] @ weights, 1) == targets[fitted:]).mean())


def picture(images: ImageSet, per_class: int = 10, most: int = 20) -> Image.Image:
    """A grid of samples, one row for each of the first classes; a class with fewer images leaves blanks.

    Small images are enlarged.
    """
    height, width, _ = images.shape
    zoom, gap = math.ceil(64 / max(height, width)), 2
    down, across = height * zoom + gap, width * zoom + gap
    classes = np.unique(images.labels)[:most]
    grid = np.full((len(classes) * down - gap, per_class * across - gap, 3), 255, np.uint8)
    for row, label in enumerate(classes):
        for column, index in enumerate(np.flatnonzero(images.labels == label)[:per_class]):
            cell = images.images[index].repeat(zoom, axis=0).repeat(zoom, axis=1)
            top, left = row * down, column * across
            grid[top : top + len(cell), left : left + cell.shape[1]] = cell  # grey spreads to three channels
    return Image.fromarray(grid)
