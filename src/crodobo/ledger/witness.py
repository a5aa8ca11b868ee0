"""The witness: a running writer of a ledger says which entry is its last, to anyone on the machine who asks.

A lock shows only that some process holds it. The witness listens on an abstract Unix socket, which has no file and ends
with the process. A question is a random number, and a signed ledger's key signs the answer with it, so that nobody else
can give an answer or repeat an old one. It works on Linux; elsewhere nobody answers.
"""

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

NONCE = 32  # bytes of a question
SECONDS = 2.0  # that either side waits
Sign = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Statement:
    """The writer's answer: the hash of its last entry. `valid` is None if no key was given to check it with."""

    head: str
    valid: bool | None


class Witness:
    """Answers questions about one ledger in a thread. `head` gives the hash of the last entry."""

    def __init__(self, ledger: str, head: Callable[[], str], sign: Sign | None = None) -> None:
        self._ledger, self._head, self._sign = ledger, head, sign
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(address_of(ledger))
            self._socket.listen(8)
        except OSError:  # another system, or somebody has the name: then nobody answers, and the audit says so
            self._socket.close()
            return
        threading.Thread(target=self._run, name="witness", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(SECONDS)
                nonce = client.recv(NONCE, socket.MSG_WAITALL)
                if len(nonce) == NONCE:
                    head = self._head()
                    signature = self._sign(content_of(nonce, self._ledger, head)).hex() if self._sign else None
                    client.sendall(json.dumps({"head": head, "signature": signature}).encode() + b"\n")


def ask(ledger: str, is_valid_signature: Callable[[bytes, str], bool] | None = None) -> Statement | None:
    """What the writer of a ledger says, or None if nobody answers."""
    nonce = secrets.token_bytes(NONCE)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(SECONDS)
            asking.connect(address_of(ledger))
            asking.sendall(nonce)
            with asking.makefile("rb") as answer:
                stated = json.loads(answer.readline(1024))
        head, signature = str(stated["head"]), str(stated["signature"] or "")
        content = content_of(nonce, ledger, head)
        return Statement(head, is_valid_signature(content, signature) if is_valid_signature else None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def address_of(ledger: str) -> str:
    """The socket's address: a name with a leading zero byte is not a file."""
    return f"\0crodobo-ledger-{ledger}"


def content_of(nonce: bytes, ledger: str, head: str) -> bytes:
    """What an answer's signature covers. It cannot be mistaken for an entry, which begins with a brace."""
    return b"crodobo ledger witness " + nonce + f"{ledger} {head}".encode()
