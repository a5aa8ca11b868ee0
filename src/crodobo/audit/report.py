"""The result of an audit."""

from collections.abc import Sequence
from dataclasses import dataclass, field

SHOWN = 20  # finds that are listed one by one


@dataclass
class Report:
    """What was checked, what was found, remarks, and what the audit cannot see: all as sentences."""

    checked: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing was found."""
        return not self.found

    def add_found(self, texts: Sequence[str]) -> None:
        """Add the first finds, and the number of the others."""
        self.found += texts[:SHOWN]
        if len(texts) > SHOWN:
            self.found.append(f"And {len(texts) - SHOWN} more.")
