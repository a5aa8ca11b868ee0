"""The way to a service: a key, TLS, and requests that are sent again only where that is safe.

A request on whose images the service may have learned is not sent twice: if its answer is lost, that is said.
"""

import contextlib
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any

import httpx2

from crodobo.errors import BadSettings, NoService, RequestRefused, ServiceError, Unanswered

CONNECT = 10.0  # seconds for a connection to come about
IDLE = 2.0  # seconds that an unused connection is kept; servers close theirs after five, and it may cost a request
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds between attempts, where the service does not say
BUSY = (429, 503)  # come again: nothing was learned, if it is the service who says so
BAD_IMAGE = re.compile(r"image (\d+) cannot be used: (.*)")
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
File = str | PathLike[str]


class Connection:
    """A service at an address.

    Parameters
    ----------
    url
        Where it is.
    key
        The key that the service knows, if it asks for one.
    timeout
        Seconds to wait for an answer.
    patience
        Seconds that one request may take in all, with its repetitions.
    ca
        The certificate of the authority that the service's own is from (PEM).
    cert
        The files of this client's certificate and of its private key, where the service wants one.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        timeout: float,
        patience: float,
        ca: File | None,
        cert: tuple[File, File] | None,
    ) -> None:
        try:
            address = httpx2.URL(url)
        except (httpx2.InvalidURL, TypeError):
            raise BadSettings(f"{url!r} is no address of a service; it is like http://127.0.0.1:8000") from None
        if address.scheme not in ("http", "https") or not address.host:
            raise BadSettings(f"{url!r} is no address of a service; it is like http://127.0.0.1:8000")
        if (ca or cert) and address.scheme != "https":
            raise BadSettings(f"certificates are for https, and {url} is not")
        if key is not None and not re.fullmatch(r"[!-~]+", key):
            raise BadSettings("the key is none: it has spaces, or letters that no key has, or it is empty")
        self.scheme, self.host = address.scheme, address.host
        self.url, self.patience = str(address).rstrip("/"), patience
        self.note: Callable[[str], None] = lambda text: None  # is told why it takes longer
        self._bare = address.scheme == "https" and not cert  # a service that wants one hangs up without a word
        self._stopping = threading.Event()
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT, timeout)),
            limits=httpx2.Limits(keepalive_expiry=IDLE),
            verify=trusting(ca, cert) if address.scheme == "https" else False,
            trust_env=False,  # private images do not go through a proxy because a variable says so
        )

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def stop(self) -> None:
        """Wait for nothing more: requests that are on their way get their answers, but none is repeated."""
        self._stopping.set()

    def wait(self, seconds: float) -> bool:
        """Wait, unless somebody says `stop`; whether somebody has."""
        return self._stopping.wait(seconds)

    def ask(self, method: str, path: str, *, repeatable: bool = True, **content: Any) -> httpx2.Response:
        """Send a request until it has an answer that is no refusal, as long as that is safe and patience lasts.

        `repeatable` says that it may be sent again although it may have arrived.
        """
        end, pause = time.monotonic() + self.patience, FIRST_PAUSE
        while True:
            wait = pause * random.uniform(0.5, 1.0)
            try:
                response = self._http.request(method, self.url + path, **content)
            except httpx2.TransportError as error:
                trouble = self._trouble(error, repeatable)
            else:
                if response.is_success:
                    return response
                trouble = self._refusal(response, repeatable)
                if response.status_code not in BUSY or isinstance(trouble, Unanswered):
                    raise trouble
                wait = asked_wait(response) * random.uniform(1.0, 1.25) or wait
            if time.monotonic() + wait > end:
                raise trouble
            self.note(f"{trouble}; trying again in {wait:.1f} s")
            if self.wait(wait):
                raise trouble
            pause = min(2 * pause, LONGEST_PAUSE)

    def look(self, path: str) -> httpx2.Response:
        """Get a page once, whatever its status."""
        try:
            return self._http.get(self.url + path)
        except httpx2.TransportError as error:
            raise self._trouble(error, repeatable=True) from None

    def _trouble(self, error: httpx2.TransportError, repeatable: bool) -> ServiceError:
        """What a failure on the way means; raised at once where another attempt cannot help, or might do harm."""
        for cause in causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                reason = cause.verify_message.strip()
                raise NoService(
                    f"the certificate of {self.url} cannot be trusted ({reason}); name the authority's with ca",
                    final=True,
                ) from None
            if isinstance(cause, ssl.SSLError) and (isinstance(error, NOT_SENT) or "ALERT" in str(cause.reason)):
                reason = str(cause.reason or cause).lower().replace("_", " ")
                raise NoService(
                    f"there is no TLS connection to {self.url} ({reason}); check the address, and cert, the client's "
                    "own certificate, if the service wants one",
                    final=True,
                ) from None
            if isinstance(cause, socket.gaierror):
                raise NoService(
                    f"there is no machine of the name in {self.url}; check the address", final=True
                ) from None
        if isinstance(error, NOT_SENT):
            reason = next((str(cause.strerror) for cause in causes(error) if isinstance(cause, OSError)), "no answer")
            return NoService(f"no service answers at {self.url} ({reason.lower()}); start one with crodobo serve")
        if repeatable:
            hint = "; does it want a certificate of the client's own, cert?" if self._bare else ""
            return NoService(f"{self.url} has given no answer ({what(error)}){hint}")
        raise self._unanswered(what(error)) from None

    def _unanswered(self, reason: str) -> Unanswered:
        return Unanswered(
            f"no answer, no receipt ({reason}): it is not known whether {self.url} has learned from these images"
        )

    def _refusal(self, response: httpx2.Response, repeatable: bool) -> ServiceError:
        """The service's own sentence, and what to do."""
        status, sentence, own = response.status_code, f"HTTP {response.status_code}", False
        with contextlib.suppress(ValueError, KeyError, TypeError):
            sentence, own = str(response.json()["error"]), True
        todo = {401: "; give the right key", 403: "; use another key", 404: "; check the address"}.get(status, "")
        told_to_come_again = own and status in BUSY  # a proxy says it also of what the service has had
        if status >= 500 and not told_to_come_again and not repeatable:
            return self._unanswered(sentence)
        found = BAD_IMAGE.match(sentence) if status == 400 else None
        image, reason = (int(found[1]) - 1, found[2]) if found else (None, sentence)
        return RequestRefused(f"{self.url} refuses: {sentence}{todo}", status=status, reason=reason, image=image)


def trusting(ca: File | None, cert: tuple[File, File] | None) -> ssl.SSLContext:
    """Whom to trust, and what to show."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(*cert)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadSettings(f"the certificates cannot be used ({reason}); check ca and cert") from None
    return context


def asked_wait(response: httpx2.Response) -> float:
    """The seconds after which the service wants to be asked again; 0 if it does not say."""
    given = response.headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 6 else 0.0


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it comes from."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def what(error: httpx2.TransportError) -> str:
    """A failure in two or three words."""
    if isinstance(error, httpx2.TimeoutException):
        return "it took too long"
    return "the connection was lost"
