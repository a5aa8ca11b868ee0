"""Settings of a service."""

from pathlib import Path
from typing import Any, ClassVar

from crodobo.config import UNSET, AboveZero, NonNegative, Positive, SessionSettings, Settings, setting


class AddressSettings(Settings):
    """Where a service listens, and which clients it accepts."""

    TITLE = "Address"

    host: str = setting("127.0.0.1", "Address to listen on; another than this machine's needs keys.")
    port: int = setting(8000, "Port to listen on; 0 chooses a free one.", ge=0, le=65535)
    keys: Path | None = setting(None, "File of API keys that `crodobo keys` makes.", metavar="FILE")
    tls_cert: Path | None = setting(None, "TLS certificate with intermediate ones (PEM).", metavar="FILE")
    tls_key: Path | None = setting(None, "Its private key (PEM).", metavar="FILE")
    tls_client_ca: Path | None = setting(None, "Clients need a certificate of this authority (PEM).", metavar="FILE")


class ServeSettings(SessionSettings):
    """Which model is served, how requests become queries, and how many there may be."""

    TITLE = "Service"
    METHOD_DEFAULTS: ClassVar[dict[str, Any]] = {"burn": "strict"}

    name: str = setting("crodobo", "Name of the model for clients.", pattern=r"\A[A-Za-z0-9_.-]{1,64}\z")
    state: Path = setting(
        UNSET,
        "Folder for the learners' state and the ledger; runs/serve-NAME if not set.",
        default_factory=lambda given: Path("runs", f"serve-{given['name']}").absolute(),
    )
    max_wait: NonNegative = setting(0.05, "Longest wait for a query to be full.", metavar="SECONDS")
    queue: Positive = setting(128, "Requests at a time; more are told to try again later.")
    deadline: AboveZero = setting(30.0, "Longest wait of a request before its query begins.", metavar="SECONDS")
    max_body: Positive = setting(64 * 2**20, "Largest request body.", metavar="BYTES")
    max_pixels: Positive = setting(40_000_000, "Largest image.", metavar="PIXELS")
    idle_steps: int = setting(0, "Further steps on a query after its answer, while no request waits.", ge=0)
    keep_states: int = setting(5, "States of the learners kept in memory, to roll back to; 0 keeps none.", ge=0)
    keep_every: Positive = setting(20, "Learned queries between two kept states.", metavar="QUERIES")
    rate: NonNegative = setting(100.0, "Requests per second that one client may send; 0 sets no limit.")
