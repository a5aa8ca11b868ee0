"""Errors that a user can put right.

Every one is a `CrodoboError` with a `problem` (what is wrong) and a `remedy` (what to do about it), each a plain
sentence. `settings` names the settings that the remedy is about; the command line turns those names into options, so
the library never mentions a flag.
"""


class CrodoboError(Exception):
    """Something the user can put right.

    Parameters
    ----------
    problem
        What is wrong: one sentence, with a capital letter and a full stop.
    remedy
        What to do about it: one sentence, or empty if the problem says it all.
    settings
        Names of the settings to change, as in the settings models: `("burn",)`.

    Examples
    --------
    >>> error = CrodoboError("There is no folder inbox.", "Check the path.", settings=("inbox",))
    >>> str(error)
    'There is no folder inbox. Check the path.'
    >>> error.remedy, error.settings
    ('Check the path.', ('inbox',))
    """

    def __init__(self, problem: str, remedy: str = "", *, settings: tuple[str, ...] = ()) -> None:
        super().__init__(" ".join(part for part in (problem, remedy) if part))
        self.problem, self.remedy, self.settings = problem, remedy, settings


class QueryBurned(CrodoboError):
    """A query was read after it was erased."""


class BadQuery(CrodoboError):
    """A query that the model cannot take. It is refused before any weight moves."""


class BadSource(CrodoboError):
    """Source data that cannot be learned from."""


class BadSettings(CrodoboError):
    """Settings that contradict each other or lie outside their range."""


class BadWeights(CrodoboError):
    """A weights file that cannot be read or does not fit the network."""


class BadCheckpoint(CrodoboError):
    """A checkpoint that cannot be read or belongs to other settings."""


class OtherImages(BadCheckpoint):
    """A checkpoint of learners that have learned other public images, or the same ones at another place."""


class NoEarlierState(CrodoboError):
    """No state of the learners is kept that is old enough to go back to."""


class TooClose(CrodoboError):
    """A checkpoint so soon after the last one would reveal the queries learned in between."""


class Interrupted(CrodoboError):
    """The user asked the run to stop, and it stopped in order."""


class BadImage(CrodoboError):
    """A file that cannot be decoded. The problem is the reason, as the second half of a sentence."""


class BadData(CrodoboError):
    """Data on disk that cannot be used: a path, a list, a table, its classes."""


class NotHardened(CrodoboError):
    """Strict burning was asked for, and a part of it is missing."""


class Residue(CrodoboError):
    """A query left something in memory that should be gone."""


class ServiceError(CrodoboError):
    """A service did not give the answer that was asked for.

    `answered` holds the answers to the requests before it, where a call took several: an `Answer`, or None.
    """

    answered: object = None


class NoService(ServiceError):
    """The service cannot be reached. `final` says that trying again does not help."""

    def __init__(self, problem: str, remedy: str = "", *, final: bool = False) -> None:
        super().__init__(problem, remedy)
        self.final = final


class Unanswered(ServiceError):
    """A request was sent and no answer came, so it is not known whether it was learned."""


class RequestRefused(ServiceError):
    """The service refused a request.

    `status` is the HTTP status, `reason` the service's own words, and `image` the index of the image it cannot use.
    """

    def __init__(self, problem: str, remedy: str = "", *, status: int, reason: str, image: int | None = None) -> None:
        super().__init__(problem, remedy, settings=("key_file",) if status in (401, 403) else ())
        self.status, self.reason, self.image = status, reason, image
