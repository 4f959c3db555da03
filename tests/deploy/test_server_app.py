from __future__ import annotations

from typing import Any

import pytest

from vhl.deploy.fleet import Patience
from vhl.deploy.server_app import Settings


def test_classes_are_in_the_unicode_form_of_the_folders() -> None:
    assert Settings.read({"classes": "cafe\u0301, b"}).classes == ("caf\u00e9", "b")


def test_numbers() -> None:
    found = Settings.read({"sites": 3, "round-timeout": 0.5, "wait": 20, "min-sites": 2})
    assert found.sites == 3 and found.patience == Patience(reply=0.5, sites=20, least=2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sites", "x"),
        ("sites", 0),
        ("sites", 1.5),
        ("wait", "long"),
        ("round-timeout", -1),
        ("min-sites", ""),
    ],
)
def test_what_is_no_number(complains: Any, key: str, value: Any) -> None:
    with complains(f"{key} = {value!r}", "--run-config"):
        Settings.read({key: value})
