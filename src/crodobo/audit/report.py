"""The result of an audit."""

from dataclasses import dataclass, field


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
