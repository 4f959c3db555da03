from __future__ import annotations

import pytest

from vhl.cli.values import split_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", ["1"]),
        ("1,2, 3", ["1", "2", "3"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ('fedavg,{name="fedprox", mu=0.1}', ["fedavg", '{name="fedprox", mu=0.1}']),
        ('"a,b",c', ['"a,b"', "c"]),
        ("'a,[b',c", ["'a,[b'", "c"]),
        ("[[1,2],[3,4]],5", ["[[1,2],[3,4]]", "5"]),
        ("", [""]),
    ],
)
def test_commas_outside_brackets_and_quotes_separate(text: str, values: list[str]) -> None:
    assert split_values(text) == values
