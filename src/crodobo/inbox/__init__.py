"""A private stream that comes as files: taken as they arrive, predicted, deleted; none is lost in a crash."""

from crodobo.inbox.adapt import adapt
from crodobo.inbox.tally import Tally, Watching

__all__ = ["Tally", "Watching", "adapt"]
