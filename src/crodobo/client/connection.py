"""The connection to a service: its key, TLS, and repeating requests where that is safe.

A request is not sent twice if the service may have learned from its images, unless the service would recognise it.
"""

import contextlib
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx2

from crodobo.client.forms import File, KeyPair, as_object
from crodobo.errors import BadSettings, NoService, RequestRefused, ServiceError, Unanswered

CONNECT = 10.0  # seconds to establish a connection
IDLE = 2.0  # seconds to keep an unused connection; servers close theirs after five, and that could cost a request
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds between attempts, if the service does not say
BUSY = (429, 503)  # nothing was learned, if these come from the service and not from a proxy
PROXY = (502, 503, 504)  # without a sentence of the service; it may have received the request
REMEDIES = {401: "Check the key.", 403: "Use another key.", 404: "Check the address."}
Result = TypeVar("Result")
Parser = Callable[[httpx2.Response], Result]
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Connection:
    """The connection to a service. `Client` describes the parameters."""

    def __init__(
        self, url: str, key: str | None, timeout: float, patience: float, ca: File | None, cert: KeyPair | None
    ) -> None:
        address = parse_url(url)
        if (ca or cert) and address.scheme != "https":
            remedy = "Use https, or leave the certificates out."
            raise BadSettings(f"Certificates need https, and {url} is not.", remedy, settings=("url",))
        if key is not None and not re.fullmatch(r"[!-~]+", key):
            wrong = "it is empty, or contains spaces or characters that keys never contain"
            raise BadSettings(f"This is not a valid API key: {wrong}.")
        self.scheme, self.host = address.scheme, address.host
        self.url, self.patience = str(address).rstrip("/"), patience
        self.note: Callable[[str], None] = lambda text: None  # receives the reason of each delay
        self._maybe_needs_cert = address.scheme == "https" and not cert
        self._stopping = threading.Event()
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT, timeout)),
            limits=httpx2.Limits(keepalive_expiry=IDLE),
            verify=tls_context(ca, cert) if address.scheme == "https" else False,
            trust_env=False,  # an environment variable must not send private images through a proxy
        )

    def close(self) -> None:
        self._http.close()

    def stop(self) -> None:
        """Repeat no more requests. Those already sent still get their answers."""
        self._stopping.set()

    def wait(self, seconds: float) -> bool:
        """Wait this long, or until `stop` is called. Returns whether it was called."""
        return self._stopping.wait(seconds)

    def ask(
        self,
        method: str,
        path: str,
        parse: Parser[Result],
        *,
        repeatable: bool = True,
        recognised: Callable[[], bool] | None = None,
        **content: Any,
    ) -> Result:
        """Send a request until it succeeds, as long as repeating it is safe and patience lasts.

        `parse` reads the response. `repeatable` says that the request may be sent again even if the service may have
        received it. Otherwise `recognised` is called first, which says whether the service would recognise it.
        """
        end, pause = time.monotonic() + self.patience, FIRST_PAUSE
        lost: Unanswered | None = None  # an earlier attempt may have been learned
        while True:
            wait = pause * random.uniform(0.5, 1.0)
            try:
                if lost and recognised and not recognised():
                    raise lost
                response = self._http.request(method, self.url + path, **content)
            except httpx2.TransportError as error:
                trouble = self._transport_error(error, repeatable)
            else:
                if response.is_success:
                    return self._parse(parse, response)
                trouble = self._refusal(response, repeatable)
                by_proxy = isinstance(trouble, Unanswered) and response.status_code in PROXY
                if response.status_code not in BUSY and not by_proxy:
                    raise trouble
                wait = retry_after(response) * random.uniform(1.0, 1.25) or wait
            if isinstance(trouble, Unanswered):
                lost = trouble
            if lost and not recognised:
                raise lost
            trouble = lost or trouble
            if time.monotonic() + wait > end:
                raise trouble
            self.note(f"{trouble} Trying again in {wait:.1f} s.")
            if self.wait(wait):
                raise trouble
            pause = min(2 * pause, LONGEST_PAUSE)

    def ask_once(self, path: str) -> dict[str, Any]:
        """The JSON object at a path, or an empty one if the service gives none."""
        response = self._http.get(self.url + path)
        return self._parse(as_object, response) if response.is_success else {}

    def state(self) -> str:
        """What the service says that it is doing, such as "ready" or "loading". It is asked once."""
        try:
            response = self._http.get(f"{self.url}/v2/health/ready")
        except httpx2.TransportError as error:
            raise self._transport_error(error, repeatable=True) from None
        found = self._parse(as_object, response) if response.status_code in (200, 503) else {}
        return "ready" if found.get("ready") is True else str(found.get("state", "not a crodobo service"))

    def _parse(self, parse: Parser[Result], response: httpx2.Response) -> Result:
        try:
            return parse(response)
        except (ValueError, KeyError, IndexError, TypeError):
            raise ServiceError(f"The server at {self.url} is not a crodobo service.", "Check the address.") from None

    def _transport_error(self, error: httpx2.TransportError, repeatable: bool) -> ServiceError:
        """The error to raise after the last attempt. Raises at once if another attempt cannot help or could harm."""
        for cause in causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                problem = f"The certificate of {self.url} is not trusted ({cause.verify_message.strip()})."
                raise NoService(problem, "Give the authority's certificate as `ca`.", final=True) from None
            if isinstance(cause, ssl.SSLError) and (isinstance(error, NOT_SENT) or "ALERT" in str(cause.reason)):
                reason = str(cause.reason or cause).lower().replace("_", " ")
                remedy = "Check the address. If the service requires client certificates, give one as `cert`."
                raise NoService(f"There is no TLS connection to {self.url} ({reason}).", remedy, final=True) from None
            if isinstance(cause, socket.gaierror):
                raise NoService(f"The host of {self.url} is unknown.", "Check the address.", final=True) from None
        if isinstance(error, NOT_SENT):
            reason = next((str(cause.strerror) for cause in causes(error) if isinstance(cause, OSError)), "no answer")
            problem = f"No service answers at {self.url} ({reason.lower()})."
            return NoService(problem, "Start one, or check the address.")
        reason = "timeout" if isinstance(error, httpx2.TimeoutException) else "the connection was lost"
        if not repeatable:
            return self._unanswered(reason)
        hint = "If the service requires client certificates, give one as `cert`." if self._maybe_needs_cert else ""
        return NoService(f"{self.url} gave no answer ({reason}).", hint)

    def _unanswered(self, reason: str) -> Unanswered:
        unknown = "so it is not known whether it learned these images"
        return Unanswered(f"{self.url} gave no answer and no receipt ({reason}), {unknown}.")

    def _refusal(self, response: httpx2.Response, repeatable: bool) -> ServiceError:
        """The error for a response that is not a success."""
        status, found = response.status_code, dict[str, Any]()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found = response.json() | {"error": str(response.json()["error"])}
        sentence = found.get("error", f"HTTP {status}.")
        is_busy = found and status in BUSY  # a proxy may answer 503 although the service received the request
        if status >= 500 and not repeatable and not is_busy:
            return self._unanswered(sentence.rstrip("."))
        image = found.get("image")
        return RequestRefused(
            f"{self.url} refused the request: {sentence}",
            REMEDIES.get(status, ""),
            status=status,
            reason=str(found.get("reason", sentence)),
            image=image - 1 if isinstance(image, int) else None,
        )


def parse_url(url: str) -> httpx2.URL:
    """The address of a service. Anything else is refused."""
    with contextlib.suppress(httpx2.InvalidURL, TypeError):
        address = httpx2.URL(url)
        if address.scheme in ("http", "https") and address.host:
            return address
    remedy = "Use one like http://127.0.0.1:8000."
    raise BadSettings(f"{url!r} is not the address of a service.", remedy, settings=("url",))


def tls_context(ca: File | None, cert: KeyPair | None) -> ssl.SSLContext:
    """A context that trusts this authority and shows this certificate."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(*cert)
    except (OSError, ValueError, TypeError) as error:
        problem = f"The certificates cannot be used ({getattr(error, 'strerror', None) or error})."
        raise BadSettings(problem, "Check the files.", settings=("ca", "cert")) from None
    return context


def retry_after(response: httpx2.Response) -> float:
    """The seconds after which the service wants the request again, or 0 if it does not say."""
    given = response.headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 6 else 0.0


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and the errors that caused it."""
    while error:
        yield error
        error = error.__cause__ or error.__context__
