"""placeholder"""
from __future__ import annotations
import math
import numpy as np
from PIL import Image
from vhl.data.images import ImageSet

def picture(images: ImageSet, per_class: int = 10) -> Image.Image:
    """A grid of samples, one row a class, with small images enlarged (a class with fewer leaves gaps)."""
    classes = np.unique(images.labels)
    height, width, channels = images.shape
    factor = max(1, math.ceil(48 / max(height, width)))
    gap, height, width = 2, height * factor, width * factor
    grid = np.full((len(classes) * (height + gap) - gap, per_class * (width + gap) - gap, 3), 255, np.uint8)
    for row, label in enumerate(classes):
        for column, index in enumerate(np.flatnonzero(images.labels == label)[:per_class]):
            top, left = row * (height + gap), column * (width + gap)
            cell = images.images[index].repeat(factor, axis=0).repeat(factor, axis=1)
            grid[top : top + height, left : left + width] = cell  # one channel broadcasts to three
    return Image.fromarray(grid)
