"""What can go wrong, as sentences for people.

Every error that a user can cause is a `CrodoboError` whose text says what is wrong and what to do.
The command line prints that text alone and exits with status 2.
"""


class CrodoboError(Exception):
    """Something the user can put right; the text says how."""


class QueryBurned(CrodoboError):
    """A query was read after it had been erased."""


class BadQuery(CrodoboError):
    """A query that no model can take; it is refused before any weight moves."""


class BadSource(CrodoboError):
    """Source data that cannot be learned from."""


class BadSettings(CrodoboError):
    """Settings that contradict each other or lie outside their range."""


class BadWeights(CrodoboError):
    """A weights file that cannot be read or does not fit the network."""


class BadCheckpoint(CrodoboError):
    """A checkpoint that cannot be read or belongs to another run."""


class Interrupted(CrodoboError):
    """The user asked the run to stop, and it has stopped in order."""


class BadImage(CrodoboError):
    """A file that cannot be decoded; the text is the reason, as the second half of a sentence."""


class BadData(CrodoboError):
    """Data on disk that is not as it should be: a path, a list, a table, its classes."""


class NotHardened(CrodoboError):
    """Strict burning was asked for, and a part of it is missing."""


class Residue(CrodoboError):
    """A query left something in memory that should be gone."""


class ServiceError(CrodoboError):
    """A service did not give the answer that was asked for.

    `answered` is what it did answer before, where a call took several requests: an `Answer`, or None.
    """

    answered: object = None


class NoService(ServiceError):
    """The service cannot be reached; `final` says that trying again does not help."""

    def __init__(self, sentence: str, final: bool = False) -> None:
        super().__init__(sentence)
        self.final = final


class Unanswered(ServiceError):
    """A request was sent and no answer came: it is not known whether it was learned."""


class RequestRefused(ServiceError):
    """The service refuses a request.

    `status` is of HTTP, `reason` the service's own words, `image` the number, from 0, of the one that it cannot use.
    """

    def __init__(self, sentence: str, status: int, reason: str, image: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.reason, self.image = status, reason, image
