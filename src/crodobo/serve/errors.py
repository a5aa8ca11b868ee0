"""What a client is told when its request cannot be answered: a status and one sentence."""

import contextlib
from collections.abc import Iterator

from crodobo.errors import NotHardened


class Refused(Exception):
    """The request is not answered. `status` is of HTTP; `retry_after`, in seconds, says when to try again."""

    def __init__(self, status: int, sentence: str, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry_after = status, sentence, retry_after


class BadRequest(Refused):
    """The request itself is wrong; trying again does not help."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(status, sentence)


class Busy(Refused):
    """There is no room, or no time: try again."""

    def __init__(self, sentence: str, retry_after: float) -> None:
        super().__init__(503, sentence, retry_after)


@contextlib.contextmanager
def room_in_memory() -> Iterator[None]:
    """Where the system locks no more memory for images, they have to come again when there are fewer."""
    try:
        yield
    except NotHardened:
        raise Busy("there is no locked memory left for more images at once", retry_after=1) from None
