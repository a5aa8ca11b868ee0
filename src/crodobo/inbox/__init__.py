"""A private stream that comes as files: taken as they arrive, predicted, deleted; none is lost in a crash."""

from crodobo.inbox.adapt import Tally, adapt

__all__ = ["Tally", "adapt"]
