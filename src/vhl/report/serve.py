"""The page of runs that are still going on, on this machine alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

from vhl.errors import VHLError
from vhl.report.figure import as_json
from vhl.report.page import page

Content = Callable[[], dict[str, Any]]


class LiveServer(ThreadingHTTPServer):
    """Serves the page, and its content for the page to renew itself."""

    daemon_threads = True

    def __init__(self, content: Content, host: str = "127.0.0.1", port: int = 0) -> None:
        """``port`` 0 is any that is free."""
        self._content, self._lock = content, threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", error)
            raise VHLError(f"No page can be served on {host}:{port} ({reason}); choose --port.") from None

    def content(self) -> dict[str, Any]:
        """One request at a time: what takes long, such as t-SNE, is kept for the next."""
        with self._lock:
            return self._content()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}/"

    def trusts(self, host: str) -> bool:
        """Whether a request names this server as a person does who sits at this machine.

        A page of the open web cannot, even if its name was made to lead here. Who opened the server to others
        by ``host`` meant them.
        """
        bound = str(self.server_address[0])
        name = host.rpartition(":")[0] or host
        return not ip_address(bound).is_loopback or name.strip("[]") in (bound, "localhost")


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer

    def do_GET(self) -> None:
        if not self.server.trusts(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "This page is for this machine alone.")
        elif self.path == "/":
            self._make("text/html", lambda content: page({**content, "live": True}))
        elif self.path == "/data.json":
            self._make("application/json", as_json)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is one page here: /")

    def _make(self, kind: str, form: Callable[[dict[str, Any]], str]) -> None:
        try:
            self._answer(HTTPStatus.OK, kind, form(self.server.content()))
        except VHLError as error:  # no round is through yet
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Refresh", "3")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no news."""


@contextmanager
def serving(content: Content, host: str = "127.0.0.1", port: int = 0) -> Iterator[LiveServer]:
    """A server in the background."""
    server = LiveServer(content, host, port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
