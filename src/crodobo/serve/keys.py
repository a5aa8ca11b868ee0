"""API keys. Only their hashes are stored, in a JSON file that is read again when it changes."""

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crodobo.errors import BadData, BadSettings
from crodobo.storage.files import write_atomically
from crodobo.storage.lock import locked_file

Role = Literal["client", "admin"]
PREFIX = "crodobo_"
MAX_CALLERS = 10_000  # that a rate remembers


class Limits(NamedTuple):
    """How much may be learned from the requests of a key.

    `share` is the largest part of a query's size that its samples may be, `rate` the number of queries a minute.
    """

    adapt: bool = True
    share: float | None = None
    rate: int | None = None

    def check(self) -> None:
        """Refuse limits that are out of range or contradict each other."""
        if self.share is not None and not 0 < self.share <= 1:
            raise BadSettings(f"The share of a query must be above 0 and at most 1, not {self.share:g}.")
        if self.rate is not None and self.rate < 1:
            raise BadSettings(f"The number of queries a minute must be at least 1, not {self.rate}.")
        if not self.adapt and (self.share or self.rate):
            raise BadSettings("A key from which nothing is learned has no other limits.", "Choose one of them.")


UNLIMITED = Limits()


class StoredKey(BaseModel):
    """A key as it is stored. Keys are 256 random bits, so a plain hash cannot be reversed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"\A[A-Za-z0-9_.-]{1,64}\z")
    role: Role
    sha256: str = Field(pattern=r"\A[0-9a-f]{64}\z")
    adapt: bool = True
    adapt_share: Annotated[float, Field(gt=0, le=1)] | None = None
    adapt_rate: Annotated[int, Field(ge=1)] | None = None

    @property
    def caller(self) -> "Caller":
        limits = Limits(self.adapt, self.adapt_share, self.adapt_rate)
        return Caller(self.name, self.role, limits, self.sha256[:16])


class Caller(NamedTuple):
    """The owner of a key. `fingerprint` is a part of the key's hash, so that a new key of the same name is another."""

    name: str
    role: Role
    limits: Limits = UNLIMITED
    fingerprint: str = ""

    @property
    def id(self) -> str:
        """What the service keeps about a caller is kept under this name."""
        return f"{self.name}/{self.fingerprint}"


class Keys:
    """The keys in a file. A change of the file applies to the next request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._stamp()
        self._keys = read_keys(path)
        if not self._keys:
            raise _unusable(f"{path} holds no keys.")

    def find(self, key: str) -> Caller | None:
        """Find the owner of a key. The key is compared with all hashes, each in constant time."""
        self._refresh()
        given = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()
        owners = [stored for stored in self._keys if hmac.compare_digest(given, stored.sha256)]
        return owners[0].caller if owners else None

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        if self._stamp() != self._seen:
            self.reload()

    def reload(self) -> None:
        """Read the file again. If it cannot be read, the known keys stay valid."""
        self._seen = self._stamp()
        try:
            self._keys = read_keys(self.path)
        except BadData as error:
            print(f"{error} Until then the old keys stay valid.", file=sys.stderr)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def read_keys(path: Path) -> list[StoredKey]:
    """Read the stored keys of a file. A file without keys is valid and lets nobody in."""
    try:
        return [StoredKey.model_validate(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except OSError as error:
        raise _unusable(f"The key file {path} cannot be read ({error.strerror}).") from None
    except (ValueError, TypeError):
        raise _unusable(f"{path} is not a key file.") from None


def _unusable(problem: str) -> BadData:
    return BadData(problem, "Make one with `crodobo keys add FILE NAME`.", settings=("keys",))


def add_key(path: Path, name: str, role: Role, limits: Limits = UNLIMITED) -> str:
    """Make a key, store its hash, and return the key, which cannot be recovered later."""
    limits.check()
    key = PREFIX + secrets.token_urlsafe(32)
    try:
        sha256 = hashlib.sha256(key.encode()).hexdigest()
        stored = StoredKey(name=name, role=role, sha256=sha256, **_as_fields(limits))
    except ValidationError:
        allowed = "Use 1 to 64 letters, digits, dots, dashes and underscores."
        raise BadSettings(f"{name!r} is not a valid name for a key.", allowed) from None
    with _rewriting(path) as keys:
        if any(other.name == name for other in keys):
            remedy = "Choose another name, or remove that key first."
            raise BadSettings(f"{path} already has a key called {name}.", remedy)
        keys.append(stored)
    return key


def remove_key(path: Path, name: str) -> None:
    """Delete a key's hash from the file."""
    with _rewriting(path) as keys:
        del keys[_find(keys, name, path)]


def limit_key(path: Path, name: str, limits: Limits) -> None:
    """Replace the limits of a key. The key itself stays valid."""
    limits.check()
    with _rewriting(path) as keys:
        place = _find(keys, name, path)
        keys[place] = keys[place].model_copy(update=_as_fields(limits))


def _as_fields(limits: Limits) -> dict[str, Any]:
    return {"adapt": limits.adapt, "adapt_share": limits.share, "adapt_rate": limits.rate}


def _find(keys: list[StoredKey], name: str, path: Path) -> int:
    names = [stored.name for stored in keys]
    if name not in names:
        raise BadSettings(f"{path} has no key called {name}.", f"It has {', '.join(names) or 'no keys'}.")
    return names.index(name)


@contextlib.contextmanager
def _rewriting(path: Path) -> Iterator[list[StoredKey]]:
    """The keys of a file, to be changed. The file is locked: of two changes at once, one would be lost."""
    try:
        with locked_file(path.absolute().with_name(f".{path.name}.lock")):
            keys = read_keys(path) if path.exists() else []
            yield keys
            entries = [stored.model_dump(exclude_defaults=True) for stored in keys]
            write_atomically(path, json.dumps(entries, indent=2) + "\n", private=True)
    except OSError as error:
        raise BadData(f"The key file {path} cannot be written ({error.strerror}).", "Choose another path.") from None


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Rate:
    """Allows each caller a number of requests per second, and short bursts of twice as many.

    >>> rate = Rate(2.0)
    >>> [rate.wait("shop", at=0.0) > 0 for _ in range(6)]
    [False, False, False, False, True, True]
    """

    def __init__(self, per_second: float) -> None:
        self._per_second, self._burst = per_second, max(1.0, 2 * per_second)
        self._left: dict[str, tuple[float, float]] = {}  # by caller: requests left, and at which time

    def wait(self, caller: str, at: float | None = None) -> float:
        """Count a request. Returns 0 if it may pass, otherwise the seconds to wait."""
        at = time.monotonic() if at is None else at
        left, before = self._left.get(caller, (self._burst, at))
        left = min(self._burst, left + (at - before) * self._per_second)
        if len(self._left) > MAX_CALLERS:
            refilled = self._burst / self._per_second  # seconds after which a caller can be forgotten
            self._left = {name: value for name, value in self._left.items() if at - value[1] < refilled}
        passes = left >= 1
        self._left[caller] = (left - passes, at)
        return 0.0 if passes else (1 - left) / self._per_second
