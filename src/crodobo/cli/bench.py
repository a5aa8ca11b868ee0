"""`crodobo bench`."""


def bench() -> None:
    """Measure."""
