from __future__ import annotations

import pytest
import torch

from vhl.objectives.naive import Naive
from vhl.objectives.vhl import VHL
from vhl.objectives.vhl_light import VHLLight


def test_it_is_vhl_with_other_defaults():
    light = VHLLight()
    assert VHL(mosaic=2, batch_norm_share=0.5).model_dump(exclude={"name"}) == light.model_dump(
        exclude={"name"}
    )
    assert light.virtual_rows(128) == 128 and light.virtual_images(128) == 32


def test_places_of_virtual_images():
    assert VHL().virtual_images(128) == 128 and VHL(virtual_batch=32).virtual_images(128) == 32
    assert Naive(mosaic=4).virtual_images(128) == 8


@pytest.mark.parametrize("objective", [VHLLight(), Naive(batch_norm_share=0.5), VHL(batch_norm_share=0.5)])
def test_how_much_images_count_in_statistics(objective):
    """Two natural images and a filler, four virtual places: halves of 1."""
    found = objective.statistics_weights(torch.tensor([1.0, 1.0, 0.0]), 4)
    assert found.tolist() == [0.25, 0.25, 0.0, 0.125, 0.125, 0.125, 0.125]


def test_unset_is_by_count():
    assert VHL().statistics_weights(torch.ones(3), 4) is None


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(ValueError, match="batch_norm_share"):
        VHL(batch_norm_share=share)
