"""Settings of adapting to a folder of private images."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from crodobo.config import DataSettings, NonNegative, Option, SessionSettings


class AdaptSettings(SessionSettings):
    """Where private images arrive, where their predictions go, and what happens to the files."""

    TITLE = "Inbox"
    METHOD_DEFAULTS: ClassVar[dict[str, Any]] = {"burn": "strict"}

    data: Annotated[DataSettings, Field(description="Images on disk.")]
    inbox: Annotated[Path, Option(metavar="FOLDER"), Field(description="Folder with the private images.")]
    predictions: Annotated[Path, Option(metavar="FILE"), Field(description="CSV file that predictions are added to.")]
    state: Path = Field(
        default_factory=lambda given: given["predictions"].with_name(f"{given['predictions'].name}.state"),
        description="Folder for the learners' state and the ledger; PREDICTIONS.state if not set.",
    )
    quarantine: Path = Field(
        default_factory=lambda given: given["inbox"] / "quarantine",
        description="Folder for files that cannot be decoded; INBOX/quarantine if not set.",
    )
    max_wait: Annotated[
        NonNegative, Option(metavar="SECONDS"), Field(description="Longest wait for a query to be full.")
    ] = 10.0
    watch: Annotated[bool, Field(description="Wait for more images, until Ctrl-C or SIGTERM.")] = False
    shuffle: Annotated[bool, Option("--shuffle/--oldest-first")] = Field(
        default_factory=lambda given: not given["watch"],
        description="Take files in random order, so that queries mix the classes, or by age; if not set, in random "
        "order without watching and by age with it.",
    )
    recursive: Annotated[bool, Field(description="Read the inbox's subfolders too.")] = False
    keep_files: Annotated[bool, Field(description="Do not delete images that are predicted.")] = False
    probabilities: Annotated[bool, Field(description="Write a column with the probability of each class.")] = False
