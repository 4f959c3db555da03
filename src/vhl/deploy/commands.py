"""What to type on the server and at each site, so that an experiment runs where the images are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from vhl.deploy.folder import read_settings
from vhl.deploy.terms import check_name
from vhl.errors import VHLError

_PORT, _LINK = 9092, 8000  # what sites connect to, and the SuperLink behind it

_TEXT = """\
# {server} is the server; the sites are {sites}.
# On every machine, in a checkout of the same version of vhl: pip install '.[flower]'
# Flower reports its use to its makers, and looks for updates, unless told not to. In every shell:
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1

# === 1. On the server, once: its certificate ===
vhl deploy keys server keys --host {host}
# Send keys/ca.pem to every site, for its folder keys. keys/ca.key and keys/server.key never leave the server.

# === 2. At each site, once: its key ===
{site_keys}
# Send keys/NAME.pub to the server, for its folder keys. keys/NAME.key stays at the site.

# === 3. On the server: the SuperLink, for this machine alone; it stays, so give it a shell of its own ===
flower-superlink --host 127.0.0.1 --port {link} --database superlink.db \\
  --ssl-certfile keys/server.pem --ssl-keyfile keys/server.key --ssl-ca-certfile keys/ca.pem \\
  --enable-supernode-auth --disable-runtime-dependency-installation

# Only /v1/fleet/ may be reached from outside. Under /v1/control/ the SuperLink takes orders from anyone who
# reaches it: to register a key, and to send code to every site. So a proxy stands before it; for nginx:
#
#   server {{
#       listen {port} ssl;
#       server_name {server};
#       ssl_certificate     {folder}/server.pem;
#       ssl_certificate_key {folder}/server.key;
#       client_max_body_size 0;
#       location /v1/fleet/ {{
#           proxy_pass https://127.0.0.1:{link};
#           proxy_ssl_trusted_certificate {folder}/ca.pem;
#           proxy_ssl_verify on;
#           proxy_ssl_name localhost;
#           proxy_request_buffering off;
#       }}
#       location / {{ return 404; }}
#   }}
#
# Open port {port} alone in the firewall, to the sites alone. From a site this must say 404:
#   curl -s --cacert keys/ca.pem -o /dev/null -w '%{{http_code}}\\n' -X POST \\
#     https://{address}/v1/control/list-runs

# === 4. On the server, once: which SuperLink is meant, and which sites may join ===
mkdir -p "${{FLWR_HOME:-$HOME/.flwr}}"
grep -qsF '[superlink.vhl]' "${{FLWR_HOME:-$HOME/.flwr}}/config.toml" || \\
cat >> "${{FLWR_HOME:-$HOME/.flwr}}/config.toml" <<END
[superlink.vhl]
address = "127.0.0.1:{link}"
root-certificates = "$PWD/keys/ca.pem"
END
{registrations}

# === 5. At each site: its node; DATA is folder:PATH or npz:PATH ===
# A node runs the code that the server sends. Start it as a user who can read the site's images and little
# else. (--trusted-entities takes only apps that Flower's own registry has signed, which this one is not.)
# A second node on one machine needs a port of its own: add --port 9095, and another number for each more.
# store="FOLDER" keeps its state and caches there, device="cpu" leaves its GPU alone.
# After a crash the server takes a node back within about a minute: the loop tries until then.
{nodes}

# === 6. On the server: the run ===
flwr run {app} vhl --stream
# Cut off? The same again with: --run-config 'resume=true'
"""


def commands(app: Path, host: str, sites: Sequence[str]) -> str:
    """The text, for an app folder, the server's name and the sites' names."""
    expected = read_settings(app).get("sites")
    if expected != len(sites):
        raise VHLError(
            f"{app} is for {expected} sites, not for {len(sites)}; name each with --site, or change `sites` "
            f"in {app / 'pyproject.toml'}."
        )
    if len(set(sites)) < len(sites):
        raise VHLError("Two sites have the same name; each needs its own.")
    return _TEXT.format(
        server=host,
        host=shlex.quote(host),
        sites=", ".join(check_name(site) for site in sites),
        folder="/PATH/TO/keys",
        port=_PORT,
        address=_address(host),
        link=_LINK,
        app=shlex.quote(str(app)),
        site_keys="\n".join(f"vhl deploy keys site keys {site}" for site in sites),
        registrations="\n".join(
            f"flwr supernode register keys/{site}.pub vhl --name {site}" for site in sites
        ),
        nodes="\n".join(_node(host, site) for site in sites),
    )


def _address(host: str) -> str:
    return f"[{host}]:{_PORT}" if ":" in host else f"{host}:{_PORT}"


def _node(host: str, site: str) -> str:
    address = shlex.quote(_address(host))
    return (
        f"until flower-supernode --superlink {address} --root-certificates keys/ca.pem \\\n"
        f"  --auth-supernode-private-key keys/{site}.key \\\n"
        f'  --node-config \'name="{site}" data="DATA"\'; do sleep 20; done'
    )
