"""Settings of adapting to a folder of private images."""

from pathlib import Path
from typing import ClassVar

from crodobo.config import DataSettings, NonNegative, SessionSettings


class AdaptSettings(SessionSettings):
    """Where private images arrive, where their predictions go, and what happens to the files."""

    data: DataSettings
    inbox: Path
    predictions: Path
    state: Path
    quarantine: Path
    max_wait: NonNegative = 10.0  # seconds that a query waits to be filled
    watch: bool = False
    shuffle: bool = False  # take the files that are there in a random order instead of by age
    recursive: bool = False
    keep_files: bool = False
    probabilities: bool = False

    FOLDER: ClassVar[tuple[str, ...]] = ("predictions", "state")
