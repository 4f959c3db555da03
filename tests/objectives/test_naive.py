from __future__ import annotations

import pytest

from vhl.objectives.naive import Naive


@pytest.mark.parametrize("virtual_rows", [3, 14])
@pytest.mark.parametrize(
    ("classes", "virtual_classes", "shared_labels", "outputs"),
    [
        (4, 4, False, 8),
        (4, 6, False, 10),
        (5, 3, False, 8),
        (4, 4, True, 4),
        (4, 6, True, 6),
        (5, 3, True, 5),
    ],
)
def test_both_cross_entropies_run_over_all_outputs(
    make_batch, cross_entropy, virtual_rows, classes, virtual_classes, shared_labels, outputs
):
    batch = make_batch(classes, outputs, 9, virtual_rows, virtual_classes)
    terms = Naive(virtual_batch=virtual_rows, shared_labels=shared_labels).loss(batch)
    offset = 0 if shared_labels else classes
    assert {name: term.item() for name, term in terms.items()} == {
        "natural": pytest.approx(cross_entropy(batch.logits[:9], batch.labels, batch.weights)),
        "virtual": pytest.approx(cross_entropy(batch.logits[9:], batch.virtual_labels + offset)),
    }


def test_the_weight_of_virtual_images(make_batch):
    batch = make_batch(4, 8, 9, 6, 4)
    usual, half, none = (Naive(virtual_weight=weight).loss(batch) for weight in (1.0, 0.5, 0.0))
    assert half["virtual"].item() == pytest.approx(usual["virtual"].item() / 2)
    assert half["natural"] == usual["natural"] and set(none) == {"natural"}
