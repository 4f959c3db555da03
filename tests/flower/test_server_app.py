from __future__ import annotations

from vhl.flower.server_app import Settings


def test_classes_are_in_the_unicode_form_of_the_folders() -> None:
    assert Settings.read({"classes": "cafe\u0301, b"}).classes == ("caf\u00e9", "b")
