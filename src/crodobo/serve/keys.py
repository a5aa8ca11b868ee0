"""Who may: API keys, of which a file holds the hashes. The file is read again when it changes."""

import contextlib
import fcntl
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crodobo.errors import BadData, BadSettings
from crodobo.storage.files import write_atomically

Role = Literal["client", "admin"]
PREFIX = "crodobo_"
MOST_CALLERS = 10_000  # that are remembered by a rate


class Entry(BaseModel):
    """A key as the file has it. Keys are 256 random bits, so a plain hash cannot be turned back."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"\A[A-Za-z0-9_.-]{1,64}\z")
    role: Role
    sha256: str = Field(pattern=r"\A[0-9a-f]{64}\z")


@dataclass(frozen=True)
class Caller:
    """Who is asking."""

    name: str
    role: Role


class Keys:
    """The keys of a file; a change of it is seen at the next request.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "keys.json"
    ...     key = add_key(path, "shop", "client")
    ...     keys = Keys(path)
    ...     keys.find(key), keys.find("another")
    (Caller(name='shop', role='client'), None)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._entries = read_keys(path)
        if not self._entries:
            raise BadData(f"{path} holds no key; crodobo keys add {path} NAME makes one")

    def find(self, key: str) -> Caller | None:
        """Whose key it is. All are compared, each in constant time."""
        self._refresh()
        given = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()
        found = None
        for entry in self._entries:
            if hmac.compare_digest(given, entry.sha256):
                found = Caller(entry.name, entry.role)
        return found

    def _refresh(self) -> None:
        """Read the file again if it has changed; one that cannot be read leaves the keys as they are."""
        with self._lock:
            if (stamp := self._stamp()) != self._seen:
                self._seen = stamp
                try:
                    self._entries = read_keys(self.path)
                except (BadData, OSError) as error:
                    print(f"{error}; until then the keys are as they were", file=sys.stderr)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def read_keys(path: Path) -> list[Entry]:
    """The entries of a keys' file; one from which the last key was taken has none, and lets nobody in."""
    try:
        return [Entry.model_validate(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except OSError as error:
        raise BadData(f"the keys' file {path} cannot be read ({error.strerror}); crodobo keys makes one") from None
    except (ValueError, ValidationError, TypeError):
        raise BadData(f"{path} is no file of keys; crodobo keys makes one") from None


def add_key(path: Path, name: str, role: Role) -> str:
    """Make a key, put its hash into the file, and give the key itself: nobody can find it out again."""
    key = PREFIX + secrets.token_urlsafe(32)
    try:
        entry = Entry(name=name, role=role, sha256=hashlib.sha256(key.encode()).hexdigest())
    except ValidationError:
        raise BadSettings(f"a key's name has letters, digits, dots and dashes, 64 at most; {name!r} has not") from None
    with _alone(path):
        entries = read_keys(path) if path.exists() else []
        if any(entry.name == name for entry in entries):
            raise BadSettings(f"{path} has a key called {name} already; take another name, or remove that one first")
        _write(path, [*entries, entry])
    return key


def remove_key(path: Path, name: str) -> None:
    """Take a key's hash out of the file."""
    with _alone(path):
        entries = read_keys(path)
        left = [entry for entry in entries if entry.name != name]
        if len(left) == len(entries):
            known = ", ".join(entry.name for entry in entries) or "none"
            raise BadSettings(f"{path} has no key called {name}; it has {known}")
        _write(path, left)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While nobody else changes a file of this folder: two who do so at once would lose a key."""
    try:
        descriptor = os.open(path.absolute().parent, os.O_RDONLY)
    except OSError as error:
        raise BadData(f"the keys' file {path} cannot be written ({error.strerror}); name another") from None
    try:
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, entries: list[Entry]) -> None:
    text = json.dumps([entry.model_dump() for entry in entries], indent=2) + "\n"
    try:
        write_atomically(path, text, private=True)
    except OSError as error:
        raise BadData(f"the keys' file {path} cannot be written ({error.strerror}); name another") from None


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone.

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
    """So many requests a second of each caller, and a few more at once.

    >>> rate = Rate(2.0)
    >>> [rate.wait("shop", at=0.0) > 0 for _ in range(6)]
    [False, False, False, False, True, True]
    """

    def __init__(self, per_second: float) -> None:
        self._per_second, self._burst = per_second, max(1.0, 2 * per_second)
        self._left: dict[str, tuple[float, float]] = {}  # by caller: what is left, and when that was

    def wait(self, caller: str, at: float | None = None) -> float:
        """Count a request; the seconds that it comes too early, 0 if it may pass."""
        at = time.monotonic() if at is None else at
        left, before = self._left.get(caller, (self._burst, at))
        left = min(self._burst, left + (at - before) * self._per_second)
        if len(self._left) > MOST_CALLERS:
            full = self._burst / self._per_second  # seconds after which a caller may as well be forgotten
            self._left = {name: value for name, value in self._left.items() if at - value[1] < full}
        passes = left >= 1
        self._left[caller] = (left - passes, at)
        return 0.0 if passes else (1 - left) / self._per_second
