from __future__ import annotations

import numpy as np
import pytest

from vhl.config.registry import build
from vhl.data.partitions.base import Partition
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


def test_data_without_sites_are_refused_with_the_layouts_that_have_them(make_dataset) -> None:
    with pytest.raises(VHLError, match="PATH/SITE/CLASS/image, an npz with an array `sites`"):
        Given().assign(make_dataset([0, 1], 2), 0)


def test_takes_no_number_of_clients() -> None:
    with pytest.raises(VHLError, match="given has no option 'clients'"):
        build(Partition, "partition", {"name": "given", "clients": 5})
