"""The process that serves: uvicorn on asyncio, TLS, signals, an orderly end."""

import contextlib
import dataclasses
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
from crodobo.serve.http_protocol import Protocol
from crodobo.serve.keys import Keys, is_loopback
from crodobo.serve.service import Service
from crodobo.session.stop import SIGNALS

GRACE = 60  # seconds beyond the deadline that accepted requests have to be answered after a signal


@dataclass(frozen=True)
class Address:
    """Where the service listens, and who may come."""

    host: str = "127.0.0.1"
    port: int = 8000
    keys: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    client_authority: Path | None = None

    def check(self) -> None:
        """Refuse what would leave the service open to others, or cannot be."""
        if not self.keys and not is_loopback(self.host):
            raise BadSettings(
                f"a service on {self.host} can be reached by others, so it needs keys; make one with crodobo keys add "
                "FILE NAME, and name the file with --keys"
            )
        if (self.certificate is None) != (self.private_key is None):
            raise BadSettings("TLS needs both --tls-cert and --tls-key")
        if self.client_authority and not self.certificate:
            raise BadSettings("--tls-client-ca needs --tls-cert and --tls-key too")
        for path in (self.certificate, self.private_key, self.client_authority):
            if path and not path.is_file():
                raise BadSettings(f"there is no file {path}; check the TLS options")

    @property
    def url(self) -> str:
        """For people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"


class Server(uvicorn.Server):
    """uvicorn, which tells the app of a signal before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let a signal end the service in order; uvicorn's own way would raise it once more at the end."""
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.drain()
        self._app.service.observer.note("stopping when what was accepted is answered; Ctrl-C once more ends at once")
        self.should_exit = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C once more ends the process as a kill does


def serve(service: Service, address: Address) -> None:
    """Serve until a signal comes, or until the model cannot be loaded."""
    address.check()
    app = App(service, Keys(address.keys) if address.keys else None)
    listener = listen(address)
    config = uvicorn.Config(
        app.api,
        host=address.host,
        port=address.port,
        loop="asyncio",  # uvloop keeps a copy of what it has received
        http=Protocol,  # with httptools: h11 keeps the last body in its buffer while a connection is open
        ws="none",
        access_log=False,  # a line of it has a path, which a client may write anything into
        log_level="error",  # that a request is no HTTP is not worth a line: anybody could fill the disk with them
        proxy_headers=False,  # whoever says for whom he asks could be anybody
        server_header=False,
        timeout_graceful_shutdown=round(service.settings.deadline) + GRACE,
        ssl_certfile=address.certificate,
        ssl_keyfile=address.private_key,
        ssl_keyfile_password="none",  # a key that has one is refused: nobody is there to be asked for it
        ssl_ca_certs=str(address.client_authority) if address.client_authority else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if address.client_authority else ssl.CERT_NONE,
    )
    try:
        server = Server(config, app)
        config.load()
    except (OSError, ssl.SSLError) as error:
        listener.close()
        raise BadSettings(f"the TLS files cannot be used ({error.strerror or error}); check them") from None

    address = dataclasses.replace(address, port=listener.getsockname()[1])
    service.observer.note(f"listening on {address.url}; ready when the model is loaded and the burn proof is made")

    def end() -> None:
        server.should_exit = True

    app.stopped = end
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
    if service.failure:
        raise CrodoboError(service.failure)


def listen(address: Address) -> socket.socket:
    """The socket, taken before anything is loaded, so that a port that is in use is known at once."""
    try:
        family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()  # until then another service could still take the port
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise BadSettings(
            f"the service cannot listen on {address.host}:{address.port} ({error.strerror or error}); choose another "
            "--host or --port"
        ) from None
    return listener
