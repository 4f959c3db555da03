from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, sign_message, verify_signature

from vhl.deploy.keys import make_authority, make_node_key


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder, ["fl.example.org", "192.0.2.7", "2001:db8::7"])
    return folder


def shake_hands(server: Path, trusted: Path, name: str) -> None:
    """A TLS handshake in memory, by OpenSSL."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server / "server.pem", server / "server.key")
    theirs = ssl.create_default_context(cafile=str(trusted))
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [ours.wrap_bio(up, down, server_side=True), theirs.wrap_bio(down, up, server_hostname=name)]
    for _ in range(4):
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[1].version() == "TLSv1.3"


@pytest.mark.parametrize("name", ["fl.example.org", "192.0.2.7", "2001:db8::7", "localhost", "127.0.0.1"])
def test_the_server_is_who_it_says(authority, name):
    shake_hands(authority, authority / "ca.pem", name)


@pytest.mark.parametrize("name", ["other.example.org", "example.org", "192.0.2.8", "127.0.0.2"])
def test_and_nobody_else(authority, name):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(authority, authority / "ca.pem", name)


def test_another_authority_does_not_count(authority, tmp_path):
    make_authority(tmp_path, ["fl.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shake_hands(tmp_path, authority / "ca.pem", "fl.example.org")


def test_flower_takes_the_key_of_a_site(tmp_path):
    """By Flower's own code: what the site signs, the server can check with what was registered."""
    make_node_key(tmp_path, "north")
    registered = bytes_to_public_key(try_load_public_key(tmp_path / "north.pub"))
    private = load_ssh_private_key((tmp_path / "north.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name == "secp384r1"
    signature = sign_message(private, b"now")
    assert verify_signature(registered, b"now", signature)
    assert not verify_signature(registered, b"then", signature)


def test_secrets_are_for_their_owner(tmp_path):
    mask = os.umask(0o022)
    try:
        make_authority(tmp_path, [])
        make_node_key(tmp_path, "north")
        assert os.umask(0o022) == 0o022  # as it was
    finally:
        os.umask(mask)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {
        **dict.fromkeys(("ca.key", "server.key", "north.key"), 0o600),
        **dict.fromkeys(("ca.pem", "server.pem", "north.pub"), 0o644),
    }


def test_nothing_is_overwritten(tmp_path, complains):
    make_authority(tmp_path, ["a"])
    make_node_key(tmp_path, "north")
    (tmp_path / "ca.key").unlink()
    (tmp_path / "north.key").unlink()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with complains("ca.pem", "exists"):
        make_authority(tmp_path, ["b"])
    with complains("north.pub", "exists"):
        make_node_key(tmp_path, "north")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_all_or_nothing(tmp_path, complains):
    (tmp_path / "server.pem.part").mkdir()  # where the last of the files would be written
    with complains("server.pem cannot be written"):
        make_authority(tmp_path, [])
    assert [file.name for file in tmp_path.iterdir()] == ["server.pem.part"]


@pytest.mark.parametrize("host", ["https://fl.example.org", "fl.example.org:9092", "", "-a", "a b", "ü.org"])
def test_what_is_no_host(tmp_path, complains, host):
    with complains(repr(host)):
        make_authority(tmp_path, [host])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "../a", ".a", 'a"', "é", "a" * 65])
def test_what_is_no_name_of_a_site(tmp_path, complains, name):
    with complains(repr(name)):
        make_node_key(tmp_path, name)
    assert list(tmp_path.iterdir()) == []
