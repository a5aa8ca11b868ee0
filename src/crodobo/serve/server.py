"""The server process: uvicorn on asyncio, TLS, and an orderly stop after a signal."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from crodobo.errors import BadSettings, CrodoboError
from crodobo.serve.app import App
from crodobo.serve.http_protocol import HttpProtocol
from crodobo.serve.keys import Keys, is_loopback
from crodobo.serve.service import Service
from crodobo.session.stop import SIGNALS

TLS = ("tls_cert", "tls_key", "tls_client_ca")
GRACE = 60  # seconds beyond the deadline to answer admitted requests after a signal


@dataclass(frozen=True)
class Address:
    """Where the service listens, and who may connect."""

    host: str = "127.0.0.1"
    port: int = 8000
    keys: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    client_authority: Path | None = None

    def check(self) -> None:
        """Refuse settings that contradict each other, or that would let everybody in."""
        if not self.keys and not is_loopback(self.host):
            raise BadSettings(
                f"A service on {self.host} can be reached from other machines, so it needs keys.",
                "Make one with `crodobo keys add FILE NAME`, and give the file.",
                settings=("keys",),
            )
        files = (self.certificate, self.private_key, self.client_authority)
        if any(files) and not (self.certificate and self.private_key):
            raise BadSettings("TLS needs a certificate and its private key.", "Give both.", settings=TLS[:2])
        for path in files:
            if path and not path.is_file():
                raise BadSettings(f"There is no file {path}.", "Check the paths.", settings=TLS)

    @property
    def is_exposed(self) -> bool:
        """Whether keys and images cross a network unencrypted."""
        return not is_loopback(self.host) and not self.certificate

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"


class Server(uvicorn.Server):
    """A uvicorn server that tells the app about a signal before it waits for open connections.

    It overrides internals of uvicorn, so pyproject.toml has an upper bound for uvicorn.
    """

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app
        self._terminals = [number for number in (1, 2) if os.isatty(number)]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let a signal stop the service in order. uvicorn itself would raise the signal again at the end."""
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.handle_hangup)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.drain()
        stopping = "Stopping after the admitted requests are answered. Ctrl-C again stops now."
        self._app.service.session.observer.note(stopping)
        self.should_exit = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def handle_hangup(self) -> None:
        """Reload keys and log, as logrotate and systemd expect. If the terminal was closed, stop instead."""
        if all(map(os.isatty, self._terminals)):
            self._app.reload()
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in self._terminals:
            os.dup2(nowhere, number)  # writing to a closed terminal is an error
        self.handle_exit(signal.SIGHUP, None)


def serve(service: Service, address: Address) -> None:
    """Serve until a signal arrives or the service fails."""
    address.check()
    app = App(service, Keys(address.keys) if address.keys else None)
    listener = listen(address)
    config = uvicorn.Config(
        app.api,
        host=address.host,
        port=address.port,
        loop="asyncio",  # uvloop keeps a copy of received data
        http=HttpProtocol,  # based on httptools; h11 keeps the last body in its buffer while a connection is open
        ws="none",
        access_log=False,  # a path could hold anything that a client writes into it
        log_level="error",  # otherwise invalid HTTP is logged, and anybody could fill the disk
        proxy_headers=False,  # a client could forge X-Forwarded-For
        server_header=False,
        timeout_graceful_shutdown=round(service.settings.deadline) + GRACE,
        ssl_certfile=address.certificate,
        ssl_keyfile=address.private_key,
        ssl_keyfile_password="none",  # refuses an encrypted key instead of prompting for its password
        ssl_ca_certs=str(address.client_authority) if address.client_authority else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if address.client_authority else ssl.CERT_NONE,
    )
    try:
        server = Server(config, app)
        config.load()
    except (OSError, ssl.SSLError) as error:
        listener.close()
        problem = f"The TLS files cannot be used ({error.strerror or error})."
        raise BadSettings(problem, "Check the certificate and its private key.", settings=TLS) from None

    address = dataclasses.replace(address, port=listener.getsockname()[1])
    listening = f"Listening on {address.url} (ready when the model is loaded and the burn proof is done)."
    service.session.observer.note(listening)

    app.stop_server = lambda: setattr(server, "should_exit", True)
    app.on_ready = lambda: service.session.observer.note(f"Ready: images can be sent to {address.url}.")
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
    if service.failure:
        raise CrodoboError(service.failure)


def listen(address: Address) -> socket.socket:
    """Open the socket before anything is loaded, so that a port in use is reported at once."""
    try:
        family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        # With protocol 0, asyncio would not set TCP_NODELAY, and answers on open connections would take 40 ms longer.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()  # until then another service could still take the port
        except OSError:
            listener.close()
            raise
    except OSError as error:
        problem = f"The service cannot listen on {address.host}:{address.port} ({error.strerror or error})."
        raise BadSettings(problem, "Choose another address.", settings=("host", "port")) from None
    return listener
