"""Errors that the service sends to a client: an HTTP status, a problem and a remedy."""

import contextlib
from collections.abc import Iterator
from typing import Any

from crodobo.errors import CrodoboError, NotHardened


class ApiError(CrodoboError):
    """A request that gets no prediction. `retry_after` is the number of seconds to wait before trying again, if any."""

    def __init__(self, problem: str, remedy: str = "", *, status: int, retry_after: float | None = None) -> None:
        super().__init__(problem, remedy)
        self.status, self.retry_after = status, retry_after
        self.body: dict[str, Any] = {"error": str(self)}  # the JSON that the client receives

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, round(self.retry_after)))}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


class BadRequest(ApiError):
    """The request itself is wrong, so sending it again does not help."""

    def __init__(self, problem: str, remedy: str = "", *, status: int = 400) -> None:
        super().__init__(problem, remedy, status=status)


class UnusableImage(BadRequest):
    """An image of the request cannot be decoded. Images are counted from 1."""

    def __init__(self, image: int, reason: str) -> None:
        super().__init__(f"Image {image} cannot be used: {reason}.")
        self.body |= {"image": image, "reason": reason}


class TooManyImages(BadRequest):
    """The request holds more images than a query, or none."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"A request must hold 1 to {limit} images.", "Send more in several requests.", status=413)


class TooMany(ApiError):
    """The client has used up its own share, so it must wait. Others need not."""

    def __init__(self, problem: str, remedy: str = "", *, retry_after: float) -> None:
        super().__init__(problem, remedy, status=429, retry_after=retry_after)


class Busy(ApiError):
    """The service has no room or no time for the request now."""

    def __init__(self, problem: str, *, retry_after: float) -> None:
        super().__init__(problem, status=503, retry_after=retry_after)


@contextlib.contextmanager
def busy_if_memory_is_full() -> Iterator[None]:
    """Turn "no more memory can be locked" into "try again later": finished requests free theirs."""
    try:
        yield
    except NotHardened:
        raise Busy("There is no locked memory left for more images.", retry_after=1) from None
