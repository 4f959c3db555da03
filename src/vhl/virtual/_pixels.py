"""From a generator's floating-point output to stored 8-bit images."""

from __future__ import annotations

import numpy as np
import torch


def to_bytes(images: torch.Tensor) -> np.ndarray:
    """Clamp (N, C, H, W) images to [0, 1] and store them as 8-bit (N, H, W, C)."""
    levels = (images.clamp(0, 1) * 255).round().to(torch.uint8)
    return levels.permute(0, 2, 3, 1).cpu().numpy()
