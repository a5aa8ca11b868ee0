"""Domain: where the stream lies, as the reference sees it, and whether a query lies elsewhere."""

import torch
from torch import Tensor

from crodobo.guard.mixedness import FULL
from crodobo.guard.reference import Look, Reference

FAR = 4.0  # distance, in bursts of a single class, from which a query is of another domain
NEW = 16  # samples of a new domain that count as much as all that came before
MOMENTUM = 0.1  # how far a full query moves the place of a stream


class Domain:
    """The place of the stream in the reference's layers, at first that of the source."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.place = [mean.clone() for mean in reference.home]
        self.samples = torch.zeros(1)  # of this domain so far
        self.strange = torch.zeros(1)  # of another domain, in a row

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name."""
        places = {f"place.{number}": place for number, place in enumerate(self.place)}
        return {"samples": self.samples, "strange": self.strange, **places}

    @property
    def remote(self) -> bool:
        """Whether the stream is so far from the source that the reference, with its statistics, does not know it."""
        return self.reference.distance(self.place, self.reference.home) > FAR

    def is_far(self, look: Look) -> bool:
        """Whether samples are of another domain than the stream so far."""
        here = self.place if self.samples else self.reference.home
        distance = self.reference.distance(look.place, here)
        return distance > FAR * (1 + 3 / len(look.features))  # few samples are always a little off

    def changes(self, far: bool) -> bool:
        """Whether the stream changes its domain for good: at its start, or after enough strange samples in a row."""
        return far and (not self.samples or float(self.strange) >= NEW)

    def skip(self, count: int) -> None:
        """Count a stray query, which is not the stream."""
        self.strange += count

    def follow(self, count: int, look: Look, changed: bool) -> None:
        """Move with a query of the stream, which may be the first of another domain."""
        self.strange.copy_(self.strange + count if changed else torch.zeros(1))
        if changed:
            self.samples.zero_()
        share = max(count / (float(self.samples) + count + NEW), MOMENTUM * min(1.0, count / FULL))
        for place, here in zip(self.place, look.place, strict=True):
            place.lerp_(here, share)
        self.samples += count
