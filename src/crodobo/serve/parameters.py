"""Parameters of requests: those that are unknown or invalid are refused with a sentence."""

from fastapi import Request
from fastapi.exceptions import RequestValidationError

from crodobo.config import nearest
from crodobo.serve.errors import BadRequest

EXPECTED = {"bool": "true or false", "int": "a whole number", "float": "a number", "finite": "a finite number"}
IN_JSON = ("adapt", "order")  # parameters of the Open Inference Protocol
SHOWN = 40  # characters of a wrong parameter that its error repeats


async def check_parameters(request: Request) -> None:
    """Refuse query parameters that the route does not have. A typo in `adapt=false` would let images be learned."""
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            inside = name in IN_JSON and request.url.path.endswith("/infer")
            remedy = "Put it into the `parameters` of the JSON." if inside else suggest(name, known)
            raise BadRequest(f"There is no parameter {name[:SHOWN]!r} here.", remedy, status=422)


def suggest(name: str, known: list[str]) -> str:
    """What somebody can do who gave an unknown name.

    >>> suggest("adpt", ["adapt", "order"]), suggest("x", ["adapt", "order"]), suggest("x", [])
    ('Did you mean adapt?', 'Use adapt or order.', 'Leave it out.')
    """
    if near := nearest(name[:SHOWN], known):
        return f"Did you mean {near}?"
    return f"Use {' or '.join(known)}." if known else "Leave it out."


def describe_invalid(error: RequestValidationError) -> str:
    """Say what a parameter must be."""
    wrong = error.errors()[0]
    kind, context = wrong["type"].partition("_")[0], wrong.get("ctx", {})
    expected = EXPECTED.get(kind) or context.get("expected") or f"at least {context.get('ge', 0)}"
    return f"`{wrong['loc'][-1]}` must be {expected}, not {str(wrong.get('input'))[:SHOWN]!r}."
