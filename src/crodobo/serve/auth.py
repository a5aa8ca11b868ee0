"""Access control: API keys, a request rate for each caller, and no requests on behalf of other sites."""

from fastapi import Request

from crodobo.serve.errors import ApiError, TooMany
from crodobo.serve.keys import Caller, Keys, Rate, is_loopback

OWN_SITE = ("same-origin", "none")  # values of Sec-Fetch-Site for requests that no other site made


class Auth:
    """Checks requests. Without keys, every user of this machine is an administrator."""

    def __init__(self, keys: Keys | None, per_second: float) -> None:
        self.keys = keys
        self.rate = Rate(per_second) if per_second else None

    async def caller(self, request: Request) -> Caller:
        """Identify the caller and note it in the request's state, or refuse the request."""
        caller = self._by_key(self.keys, request) if self.keys else self._local(request)
        if self.rate and (wait := self.rate.wait(caller.id)):
            raise TooMany("Too many requests.", "Send them more slowly.", retry_after=wait)
        request.state.caller = caller
        return caller

    async def admin(self, request: Request) -> Caller:
        """Identify the caller, who must be an administrator."""
        caller = await self.caller(request)
        if caller.role != "admin":
            raise ApiError("This needs an administrator's key.", status=403)
        return caller

    def _by_key(self, keys: Keys, request: Request) -> Caller:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        caller = keys.find(key) if key else None
        if not caller:
            remedy = "Send a key that this service knows: Authorization: Bearer KEY."
            raise ApiError("The request has no valid API key.", remedy, status=401)
        return caller

    def _local(self, request: Request) -> Caller:
        """A user of this machine. Requests that a browser sends on behalf of another site are refused (CSRF)."""
        host, origin = request.headers.get("host", "localhost"), request.headers.get("origin")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]  # without its port
        foreign = origin is not None and origin.partition("://")[2] != host
        if foreign or not is_loopback(name) or request.headers.get("sec-fetch-site", "none") not in OWN_SITE:
            remedy = "Without keys, the service must be addressed as localhost."
            raise ApiError("Requests on behalf of another site are refused.", remedy, status=403)
        return Caller(request.client.host if request.client else "local", "admin")
