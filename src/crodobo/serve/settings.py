"""Settings of a service."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from crodobo.config import AboveZero, NonNegative, Option, Positive, SessionSettings, Settings


class AddressSettings(Settings):
    """Where a service listens, and which clients it accepts."""

    TITLE = "Address"

    host: Annotated[str, Field(description="Address to listen on; another than this machine's needs keys.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on; 0 chooses a free one.")] = 8000
    keys: Annotated[
        Path | None, Option(metavar="FILE"), Field(description="File of API keys that `crodobo keys` makes.")
    ] = None
    tls_cert: Annotated[
        Path | None, Option(metavar="FILE"), Field(description="TLS certificate with intermediate ones (PEM).")
    ] = None
    tls_key: Annotated[Path | None, Option(metavar="FILE"), Field(description="Its private key (PEM).")] = None
    tls_client_ca: Annotated[
        Path | None,
        Option(metavar="FILE"),
        Field(description="Clients need a certificate of this authority (PEM)."),
    ] = None


class ServeSettings(SessionSettings):
    """Which model is served, how requests become queries, and how many there may be."""

    TITLE = "Service"
    METHOD_DEFAULTS: ClassVar[dict[str, Any]] = {"burn": "strict"}

    name: Annotated[str, Field(pattern=r"\A[A-Za-z0-9_.-]{1,64}\z", description="Name of the model for clients.")] = (
        "crodobo"
    )
    state: Path = Field(
        default_factory=lambda given: Path("runs", f"serve-{given['name']}").absolute(),
        description="Folder for the learners' state and the ledger; runs/serve-NAME if not set.",
    )
    max_wait: Annotated[
        NonNegative, Option(metavar="SECONDS"), Field(description="Longest wait for a query to be full.")
    ] = 0.05
    queue: Annotated[Positive, Field(description="Requests at a time; more are told to try again later.")] = 128
    deadline: Annotated[
        AboveZero, Option(metavar="SECONDS"), Field(description="Longest wait of a request before its query begins.")
    ] = 30.0
    max_body: Annotated[Positive, Option(metavar="BYTES"), Field(description="Largest request body.")] = 64 * 2**20
    max_pixels: Annotated[Positive, Option(metavar="PIXELS"), Field(description="Largest image.")] = 40_000_000
    rate: Annotated[
        AboveZero | None, Field(description="Requests per second that one client may send; no limit if not set.")
    ] = None
