"""A private stream that comes as files: taken as they arrive, predicted, deleted; none is lost in a crash."""
