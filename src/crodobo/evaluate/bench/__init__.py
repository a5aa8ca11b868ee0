"""Speed and memory, as ratios that hold on a noisy machine: of the engine, and of reading images from a disk."""

from crodobo.evaluate.bench.engine import CASES, measure
from crodobo.evaluate.bench.reading import measure_reading

__all__ = ["CASES", "measure", "measure_reading"]
