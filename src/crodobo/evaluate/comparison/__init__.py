"""Many runs under one protocol: same warm starts, stream orders, backbone and seeds, spread over processes."""

from crodobo.evaluate.comparison.plan import Entry, Plan, Task
from crodobo.evaluate.comparison.results import Results, collect, widen
from crodobo.evaluate.comparison.schedule import Monitor, carry_out

__all__ = ["Entry", "Monitor", "Plan", "Results", "Task", "carry_out", "collect", "widen"]
