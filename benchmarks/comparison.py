"""Check the results of `crodobo compare` on `glyphs` against our bars.

    crodobo compare --plain --benchmark glyphs --methods all --seeds 0,1,2 --out runs/comparison
    python benchmarks/comparison.py [runs/comparison/comparison.json]

Prints whether each bar is reached, and fails if one is missed.
"""

import json
import statistics
import sys
from pathlib import Path

SIX = ("dan", "coral", "dann", "ent", "mdd", "cdan")


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/comparison/comparison.json")
    if not path.is_file():
        sys.exit(f"There is no {path}. Run crodobo compare first.")
    entries = json.loads(path.read_text())["entries"]
    online = {
        name: 100 * statistics.fmean(run["online_accuracy"] for run in entry["online"].values())
        for name, entry in entries.items()
        if entry["online"]
    }
    clean = {name: value for name, value in online.items() if not entries[name]["keeps_target"]}
    best = max(SIX, key=lambda name: online[name])
    first = max(clean, key=lambda name: clean[name])
    lead = online["crodobo"] - online[best]
    bars = {
        f"first online among methods that keep nothing is {first} ({clean[first]:.2f})": first == "crodobo",
        f"CroDoBo {online['crodobo']:.2f}, {lead:.2f} points above {best}, best of the paper's six (≥ 3)": lead >= 3,
        f"TENT {online['tent']:.2f} above no adaptation {online['no-adaptation']:.2f}": online["tent"]
        > online["no-adaptation"],
    }
    for name in ("dan", "dann", "cdan", "ent"):
        text = f"{name} {online[name]:.2f} above source-only {online['source-only']:.2f}"
        bars[text] = online[name] > online["source-only"]
    for text, reached in bars.items():
        print(f"{'reached' if reached else 'MISSED '}  {text}")
    sys.exit(sum(not reached for reached in bars.values()))


if __name__ == "__main__":
    main()
