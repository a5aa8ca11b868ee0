"""Many runs under one protocol: the same warm starts, stream orders, backbone and seeds, run in several processes."""

from crodobo.evaluate.comparison.plan import Entry, Plan, Task
from crodobo.evaluate.comparison.results import EntryResults, Results, collect_results, include_earlier_runs
from crodobo.evaluate.comparison.scheduler import run_tasks

__all__ = ["Entry", "EntryResults", "Plan", "Results", "Task", "collect_results", "include_earlier_runs", "run_tasks"]
