from __future__ import annotations

import numpy as np
import pytest

from vhl.data.partitions.given import Given
from vhl.errors import VHLError


def test_client_is_a_site_in_the_order_of_the_names(make_dataset) -> None:
    sites = np.array([2, 0, 1, 0, 2, 2])
    dataset = make_dataset([0, 1, 0, 1, 0, 1], 2, sites, ("north", "east", "south"))
    assert [part.tolist() for part in Given().assign(dataset, 0)] == [[1, 3], [2], [0, 4, 5]]


def test_site_without_training_images_is_named(make_dataset) -> None:
    dataset = make_dataset([0, 1], 2, np.array([1, 1]), ("north", "east", "south"))
    with pytest.raises(VHLError, match="No training image belongs to site 'north', 'south'"):
        Given().assign(dataset, 0)
