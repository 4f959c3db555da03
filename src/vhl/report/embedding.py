"""Features in the plane."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PERPLEXITY = 30.0


def embed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """t-SNE (van der Maaten and Hinton, JMLR 2008) of two samples or more, (samples × features)."""
    from sklearn.manifold import TSNE  # a second, which nothing else needs

    perplexity = min(_PERPLEXITY, (len(values) - 1) / 3)
    points: NDArray[np.float32] = TSNE(perplexity=perplexity, random_state=0).fit_transform(values)
    return points
