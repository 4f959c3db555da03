"""CIFAR-100."""

from __future__ import annotations

from typing import ClassVar

from vhl.data.images import Cutout, Mean, Std
from vhl.data.sources._cifar import CifarSource, Distribution
from vhl.data.sources._official import Fingerprint, OfficialFile

_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


class CIFAR100(CifarSource):
    """CIFAR-100: 60,000 colour photographs in 100 classes (the fine labels), 32×32 pixels.

    Krizhevsky, Learning multiple layers of features from tiny images, 2009. Cutout is on by default:
    DeVries and Taylor, arXiv:1708.04552, 2017.
    """

    official: ClassVar[tuple[OfficialFile, ...]] = (
        OfficialFile(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    )
    distributions: ClassVar[tuple[Distribution, ...]] = (
        Distribution(
            "cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin", pickled=False
        ),
        Distribution("cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test", pickled=True),
    )
    places: ClassVar[tuple[str, ...]] = (*distributions[0].places, *distributions[1].places)
    fingerprint: ClassVar[Fingerprint | None] = Fingerprint(
        train="f062ca493c4d44a3d0921f223fbc3b1e88b46fd03322e97c635a0ac2a5f8baab",
        test="dc83e74dc0797ec7de75164abeb59d8c66b9677d62e46ddb8ce1ab1608ba1b7d",
    )
    label_bytes: ClassVar[int] = 2
    label_key: ClassVar[str] = "fine_labels"
    class_names: ClassVar[tuple[str, ...]] = tuple(_CLASSES.split())

    cutout: Cutout = 16
    mean: Mean = (0.5071, 0.4865, 0.4409)
    std: Std = (0.2673, 0.2564, 0.2762)
