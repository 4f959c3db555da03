"""Keys of a deployment: the server's certificate, by an authority of its own, and a key for each site."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vhl.deploy.private import write_private
from vhl.deploy.terms import check_name
from vhl.errors import VHLError
from vhl.files import write_bytes

_YEARS = 10  # an authority that expires stops every site at once
_HERE = ("localhost", "127.0.0.1")


def make_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Write ca.pem, server.pem and their keys; the certificate holds for these names and addresses.

    It holds for this machine as well: the server talks to itself under TLS too.
    """
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *_HERE])]
    root = _certificate(authority, authority, None)
    leaf = _certificate(server, authority, x509.SubjectAlternativeName(names))
    content = {"ca.key": _private(authority, PrivateFormat.PKCS8), "ca.pem": root.public_bytes(Encoding.PEM)}
    content |= {"server.key": _private(server, PrivateFormat.PKCS8)}
    content |= {"server.pem": leaf.public_bytes(Encoding.PEM)}
    _write(folder, content)


def make_node_key(folder: Path, name: str) -> None:
    """Write NAME.key, which stays at the site, and NAME.pub, which the server registers.

    An ECDSA key on P-384 in OpenSSH's format, as Flower's nodes sign their requests with.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    content = {f"{name}.key": _private(key, PrivateFormat.OpenSSH)}
    content |= {f"{name}.pub": public + f" {check_name(name)}\n".encode()}
    _write(folder, content)


def _certificate(
    key: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    names: x509.SubjectAlternativeName | None,
) -> x509.Certificate:
    """The server's certificate for these names, or without any the authority's own (RFC 5280)."""
    signing = names is None
    issuer = _called("vhl deployment authority")
    subject = issuer if signing else _called("vhl server")
    now = datetime.now(UTC)
    usage = x509.KeyUsage(not signing, False, False, False, False, signing, signing, False, False)
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # a site's clock may be behind
        .not_valid_after(now + timedelta(days=365 * _YEARS))
        .add_extension(x509.BasicConstraints(ca=signing, path_length=0 if signing else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identity, critical=False)
        .add_extension(signer, critical=False)
    )
    if names is not None:
        serving = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(names, critical=False).add_extension(serving, critical=False)
    return builder.sign(authority, hashes.SHA384())


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
        raise VHLError(f"{host!r} is no host name or address; leave away a port and https://.")
    return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _write(folder: Path, content: Mapping[str, bytes]) -> None:
    """All of the files or none; what is secret is so from its first byte."""
    for name in content:
        if (folder / name).exists():
            raise VHLError(f"{folder / name} exists already; move it away, or choose another folder.")
    written: list[Path] = []
    try:
        for name, what in content.items():
            write = write_private if name.endswith(".key") else write_bytes
            write(folder / name, what)
            written.append(folder / name)
    except BaseException:
        for file in written:
            file.unlink(missing_ok=True)
        raise
