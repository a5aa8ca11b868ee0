"""Result files of a run, tables and reports."""

import csv
import io
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from crodobo.core.metrics import QueryRecord
from crodobo.evaluate.outcome import Outcome
from crodobo.evaluate.report.drawing import check_report_packages, to_png
from crodobo.evaluate.report.run_figures import draw_curve
from crodobo.evaluate.report.run_page import render_run
from crodobo.methods import Method
from crodobo.session.model import save_model
from crodobo.storage.files import write_atomically

RESULT_FILES = ("result.json", "curve.csv", "predictions.csv", "curve.png", "report.html", "model.safetensors")

__all__ = ["RESULT_FILES", "check_report_packages", "write_results"]


def write_results(folder: Path, outcome: Outcome, method: Method) -> dict[str, Any]:
    """Write all result files, replacing old ones. `result.json` comes last, so the others exist when it does."""
    result = outcome.result()
    curve = draw_curve(outcome)
    (folder / "result.json").unlink(missing_ok=True)
    write_atomically(folder / "curve.csv", curve_table(outcome))
    write_atomically(folder / "predictions.csv", prediction_table(outcome))
    write_atomically(folder / "curve.png", to_png(curve))
    write_atomically(folder / "report.html", render_run(outcome, method, result, curve))
    save_model(folder / "model.safetensors", method)
    write_atomically(folder / "result.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    return result


def curve_table(outcome: Outcome) -> str:
    """CSV with a row for each query."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(QueryRecord)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in outcome.record.rows)
    return text.getvalue()


def prediction_table(outcome: Outcome) -> str:
    """CSV with a row for each sample, in stream order: its index, prediction, confidence and label."""
    classes = outcome.benchmark.source.classes
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["query", "sample", "predicted", "confidence", "label"])
    size, labels = outcome.settings.query_size, outcome.benchmark.labels
    rows = zip(outcome.streamed.tolist(), outcome.record.predicted, outcome.record.confidence, strict=True)
    for position, (sample, predicted, confidence) in enumerate(rows):
        name = classes[predicted] if predicted >= 0 else ""
        writer.writerow([position // size + 1, sample, name, f"{confidence:.6f}", classes[int(labels[sample])]])
    return text.getvalue()
