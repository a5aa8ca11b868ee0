"""Settings of adapting to a folder of private images."""

from pathlib import Path
from typing import Any, ClassVar

from crodobo.config import UNSET, DataSettings, NonNegative, SessionSettings, setting


class AdaptSettings(SessionSettings):
    """Where private images arrive, where their predictions go, and what happens to the files."""

    TITLE = "Inbox"
    FOLDER = ("predictions", "state")
    METHOD_DEFAULTS: ClassVar[dict[str, Any]] = {"burn": "strict"}

    data: DataSettings = setting(UNSET, "Images on disk.")
    inbox: Path = setting(UNSET, "Folder with the private images.", metavar="FOLDER")
    predictions: Path = setting(UNSET, "CSV file that predictions are added to.", metavar="FILE")
    state: Path = setting(
        UNSET,
        "Folder for the learners' state and the ledger; PREDICTIONS.state if not set.",
        default_factory=lambda given: given["predictions"].with_name(f"{given['predictions'].name}.state"),
    )
    quarantine: Path = setting(
        UNSET,
        "Folder for files that cannot be decoded; INBOX/quarantine if not set.",
        default_factory=lambda given: given["inbox"] / "quarantine",
    )
    max_wait: NonNegative = setting(10.0, "Longest wait for a query to be full.", metavar="SECONDS")
    watch: bool = setting(False, "Wait for more images, until Ctrl-C or SIGTERM.")
    shuffle: bool = setting(
        UNSET,
        "Take files in random order, so that queries mix the classes, or by age; if not set, in random order without "
        "watching and by age with it.",
        "--shuffle/--oldest-first",
        default_factory=lambda given: not given["watch"],
    )
    recursive: bool = setting(False, "Read the inbox's subfolders too.")
    keep_files: bool = setting(False, "Do not delete images that are predicted.")
    probabilities: bool = setting(False, "Write a column with the probability of each class.")
