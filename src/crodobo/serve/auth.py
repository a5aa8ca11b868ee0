"""Who is let in: a key that is known, not too often, and no page of another site."""

from fastapi import Request

from crodobo.serve.errors import Refused
from crodobo.serve.keys import Caller, Keys, Rate, is_loopback

OWN = ("same-origin", "none")  # what a browser says of requests that no other site has made


class Gate:
    """Asked before every request that is not open to all.

    Parameters
    ----------
    keys
        The keys that are known. Without any, everybody on this machine is let in, as an administrator.
    per_second
        Requests a second of one caller; None: no limit.
    """

    def __init__(self, keys: Keys | None, per_second: float | None) -> None:
        self.keys = keys
        self.rate = Rate(per_second) if per_second else None

    async def caller(self, request: Request) -> Caller:
        """Who is asking; refused without a key that is known, and where he asks too often."""
        found = self._by_key(self.keys, request) if self.keys else self._from_here(request)
        if self.rate and (early := self.rate.wait(found.name)):
            raise Refused(429, "these are too many requests in a short time", early)
        return found

    async def admin(self, request: Request) -> Caller:
        """The same, for what only an administrator may."""
        found = await self.caller(request)
        if found.role != "admin":
            raise Refused(403, "this key is not an administrator's")
        return found

    def _by_key(self, keys: Keys, request: Request) -> Caller:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        known = keys.find(key) if key else None
        if not known:
            raise Refused(401, "a key is needed that this service knows: Authorization: Bearer KEY")
        return known

    def _from_here(self, request: Request) -> Caller:
        """Somebody on this machine; a page of another site that is open in his browser is somebody else."""
        host, origin = request.headers.get("host", "localhost"), request.headers.get("origin")
        strange = origin is not None and origin.partition("://")[2] != host
        if strange or not is_loopback(name_of(host)) or request.headers.get("sec-fetch-site", "none") not in OWN:
            raise Refused(403, "another site may not do this; without keys, the service is asked for as localhost")
        return Caller(request.client.host if request.client else "local", "admin")


def name_of(host: str) -> str:
    """The name in a `Host` header, which may have a port.

    >>> name_of("localhost:8000"), name_of("[::1]:8000"), name_of("[::1]"), name_of("127.0.0.1")
    ('localhost', '::1', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
