from __future__ import annotations

from pathlib import Path

import pytest

from vhl.data.sources.base import data_directory
from vhl.deploy.settings import NodeSettings, RunSettings


def test_a_runs_settings_and_what_else_flower_may_hold():
    config = {"sites": 3, "round-timeout": 0.5, "wait": 20, "min-sites": 2, "resume": True, "other": 1}
    found = RunSettings.read(config)
    assert (found.sites, found.round_timeout, found.wait, found.resume) == (3, 0.5, 20, True)
    assert (found.test, found.runs_dir, found.class_names) == ("", "runs", ())


def test_classes_are_in_the_unicode_form_of_the_folders():
    assert RunSettings.read({"classes": "cafe\u0301, b,"}).class_names == ("caf\u00e9", "b")


@pytest.mark.parametrize(
    ("least", "asked", "needed"), [(0, 1, 1), (0, 5, 2), (0, 6, 3), (2, 6, 2), (4, 3, 3), (1, 1, 1)]
)
def test_how_many_sites_must_answer(least, asked, needed):
    assert RunSettings.read({"min-sites": least}).needed(asked) == needed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sites", "x"),
        ("sites", 0),
        ("sites", 1.5),
        ("wait", "long"),
        ("round-timeout", -1),
        ("wait", float("nan")),
        ("min-sites", ""),
        ("resume", "perhaps"),
    ],
)
def test_a_run_cannot_be_set_to_this(complains, key, value):
    with complains(f"{key} = {value!r}", "--run-config"):
        RunSettings.read({key: value})


def test_a_nodes_settings():
    least = NodeSettings.read({"name": "A-1.b_c", "data": "folder:x", "store": ""})
    assert (least.name, least.data, least.store) == ("A-1.b_c", "folder:x", data_directory())
    assert (least.device, least.virtual) == ("auto", "make")
    assert NodeSettings.read({"name": "a", "data": "folder:x"}) == least.model_copy(update={"name": "a"})
    full = {"name": 7, "data": "part:2", "store": "~/s", "device": "cuda:1", "virtual": "receive"}
    expected = {"name": "7", "store": Path.home() / "s"}
    assert NodeSettings.read(full).model_dump() == {**full, **expected}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "name must be set"),
        ({"data": "npz:x"}, "name must be set"),
        ({"name": "", "data": "npz:x"}, "name of a site"),
        ({"name": "a/b", "data": "npz:x"}, "a/b"),
        ({"name": "../up", "data": "npz:x"}, "../up"),
        ({"name": "a b", "data": "npz:x"}, "a b"),
        ({"name": "a\n", "data": "npz:x"}, "a\\n"),
        ({"name": "x" * 65, "data": "npz:x"}, "at most 64"),
        ({"name": "a"}, "data must be set"),
        ({"name": "a", "data": ""}, "data = ''"),
        ({"name": "a", "data": "npz:x", "virtual": "maybe"}, "virtual = 'maybe'"),
        ({"name": "a", "data": "npz:x", "virtual": True}, "virtual = True"),
    ],
    ids=str,
)
def test_a_node_cannot_be_set_to_this(complains, config, words):
    with complains(words):
        NodeSettings.read(config)
