from __future__ import annotations

import pytest

from vhl.objectives.naive import Naive
from vhl.objectives.vhl import VHL
from vhl.objectives.vhl_light import VHLLight
from vhl.objectives.virtual_batch import VirtualBatch


def test_it_is_vhl_with_other_defaults():
    light = VHLLight()
    assert VHL(mosaic=2, batch_norm_share=0.5).model_dump(exclude={"name"}) == light.model_dump(
        exclude={"name"}
    )
    assert light.virtual_images(128) == VirtualBatch(128, tiles=2, share=0.5)


def test_places_of_virtual_images():
    assert VHLLight().virtual_images(128).places == 32
    assert VHL().virtual_images(128).places == 128 and VHL(virtual_batch=32).virtual_images(128).places == 32
    same = Naive(mosaic=4, mosaic_classes="same").virtual_images(128)
    assert same == VirtualBatch(128, tiles=4, one_class=True) and same.places == 8


def test_tiles_divide_images(complains):
    assert VirtualBatch(9, tiles=3).shape((12, 9, 2)) == (4, 3, 2)
    for size in ((8, 9, 1), (9, 8, 1)):
        with complains("objective.mosaic = 3", f"{size[0]}×{size[1]}"):
            VirtualBatch(9, tiles=3).shape(size)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(ValueError, match="batch_norm_share"):
        VHL(batch_norm_share=share)
