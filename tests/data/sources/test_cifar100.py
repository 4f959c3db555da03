from __future__ import annotations

from official_forms import COLOUR, cifar_record, write
from vhl.data.sources.cifar100 import CIFAR100


def test_classes_are_in_alphabetical_order():
    assert list(CIFAR100.class_names) == sorted(CIFAR100.class_names)


def test_the_record_of_cifar_10_does_not_pass(tmp_path, complains):
    written = write("cifar100 binary folder", tmp_path, train=cifar_record(COLOUR[0], 1))
    with complains("train.bin is damaged (its 3073 bytes are no multiple of 3074)", "vhl data get cifar100"):
        written.read()
