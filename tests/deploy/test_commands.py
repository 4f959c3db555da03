from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from flwr.cli.app import app as flwr
from flwr.cli.flower_config import read_superlink_connection
from flwr.common.config import parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from vhl.cli.main import build_parser
from vhl.deploy.commands import commands
from vhl.deploy.folder import write_app
from vhl.experiment import Experiment


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "my app"
    write_app(folder, Experiment(), {"sites": 2})
    return folder


@pytest.fixture
def text(app: Path) -> str:
    return commands(app, "fl.example.org", ["north", "south.2"])


def typed(text: str, program: str) -> list[list[str]]:
    """The arguments of each call of a program, as the shell would pass them."""
    whole = text.replace("\\\n", "")
    found = re.findall(rf"^(?:until )?{program} (.*?)(?:; do .*)?$", whole, re.MULTILINE)
    return [shlex.split(line) for line in found]


def test_the_shell_understands_it(text):
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_the_superlink_is_for_its_own_machine_and_asks_for_keys(text):
    (words,) = typed(text, "flower-superlink")
    options = _parse_args_run_superlink().parse_args(words)
    assert (options.host, options.port) == ("127.0.0.1", 8000)
    assert options.enable_supernode_auth and not options.insecure
    assert not options.runtime_dependency_install
    files = (options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certfile)
    assert files == ("keys/server.pem", "keys/server.key", "keys/ca.pem")


@pytest.mark.parametrize(
    ("host", "address"), [("fl.example.org", "fl.example.org:9092"), ("2001:db8::7", "[2001:db8::7]:9092")]
)
def test_a_node_for_each_site(app, host, address):
    calls = typed(commands(app, host, ["north", "south.2"]), "flower-supernode")
    options = [_parse_args_run_supernode().parse_args(words) for words in calls]
    assert [parse_config_args([each.node_config])["name"] for each in options] == ["north", "south.2"]
    for each, site in zip(options, ("north", "south.2"), strict=True):
        assert each.superlink == address and not each.insecure
        assert each.root_certificates == "keys/ca.pem"
        assert each.auth_supernode_private_key == f"keys/{site}.key"
        assert not each.runtime_dependency_install


def flower_reads(words: list[str]) -> dict[str, Any]:
    """What Flower's command line makes of the words, without doing it."""
    command: Any = typer.main.get_command(flwr)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    read: dict[str, Any] = command.make_context(command.name, words).params
    return read


def test_flowers_own_command(app, text):
    first, second, run = [flower_reads(words) for words in typed(text, "flwr")]
    assert [(str(each["public_key"]), each["name"], each["superlink"]) for each in (first, second)] == [
        ("keys/north.pub", "north", "vhl"),
        ("keys/south.2.pub", "south.2", "vhl"),
    ]
    assert (run["app"], run["superlink"], run["stream"]) == (str(app), "vhl", True)


def test_flower_finds_the_superlink(text, tmp_path, monkeypatch):
    """By the file that the text writes; a part of it is already there."""
    home = tmp_path / "home"
    monkeypatch.setenv("FLWR_HOME", str(home))
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "ca.pem").write_text("certificate", encoding="utf-8")
    block = re.search(r"^mkdir .*?^END$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    home.mkdir()
    (home / "config.toml").write_text('[superlink]\ndefault = "other"\n', encoding="utf-8")
    for _ in range(2):  # a table that stands there twice is one that Flower cannot read
        subprocess.run(["bash", "-e"], input=block[0], text=True, check=True, cwd=tmp_path)
    connection = read_superlink_connection("vhl")
    assert connection.address == "127.0.0.1:8000" and not connection.insecure
    assert connection.root_certificates == str(tmp_path / "keys" / "ca.pem")


def test_our_own_command(text):
    server, *sites = [build_parser().parse_args(words) for words in typed(text, "vhl")]
    assert (server.whose, str(server.folder), server.host) == ("server", "keys", ["fl.example.org"])
    assert [(site.whose, str(site.folder), site.name) for site in sites] == [
        ("site", "keys", "north"),
        ("site", "keys", "south.2"),
    ]


@pytest.mark.parametrize(
    ("sites", "texts"),
    [
        (["north"], ["2 sites", "1", "--site"]),
        (["north", "north"], ["same name"]),
        (["north", "the south"], ["'the south'"]),
    ],
)
def test_sites_that_do_not_fit(app, complains, sites, texts):
    with complains(*texts):
        commands(app, "fl.example.org", sites)
