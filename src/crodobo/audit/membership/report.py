"""The files of a membership audit: table, figure, numbers, and a summary of each method."""

import csv
import io
import json
from dataclasses import asdict, astuple
from typing import Any

from crodobo.audit.membership.findings import ENOUGH, GRID, Finding
from crodobo.audit.membership.lira import usual_variance
from crodobo.audit.membership.plan import ShadowPlan
from crodobo.audit.membership.roc import FALSE_ALARMS, NUMBERS, ROUNDS, Estimate
from crodobo.evaluate.report.drawing import BLUE, GREEN, GREY, ORANGE, to_png
from crodobo.evaluate.report.table import Cell, Column, Row, Table
from crodobo.storage.files import write_atomically

STYLES = {"loss": (GREEN, "--"), "entropy": (GREY, "--"), "LiRA": (BLUE, "-"), "RMIA": (ORANGE, "-")}


def write_membership(plan: ShadowPlan, findings: list[Finding]) -> Table:
    """Write all files of an audit to its folder. Returns the table."""
    table = membership_table(plan, findings)
    sentences = "\n".join(f"- {in_words(finding)}" for finding in findings)
    for name, content in (
        ("membership.json", json.dumps(as_data(plan, findings), indent=2, ensure_ascii=False) + "\n"),
        ("membership.csv", as_csv(findings)),
        ("membership.md", f"{table.to_markdown()}\n{sentences}\n"),
        ("membership.png", draw_membership(plan, findings)),
    ):
        write_atomically(plan.folder / name, content)
    return table


def in_words(finding: Finding) -> str:
    """The meaning of the strongest attack, in a few sentences."""
    estimates = finding.attacks[finding.strongest].estimates
    rate = min(FALSE_ALARMS)
    auc, true_rate = estimates["auc"], estimates[f"tpr_at_{rate}"]
    every = [attack.estimates for attack in finding.attacks.values()]
    leaks = any(each["auc"].low > 0.5 or each[f"tpr_at_{rate}"].low > rate for each in every)
    return (
        f"{finding.method}: given a member and a non-member, an attacker with the weights picks the member "
        f"{_percent(auc.value)} % of the time ({_percent(auc.low)} to {_percent(auc.high)}; guessing: 50). With one "
        f"false alarm in {1 / rate:.0f} non-members, the attacker identifies {_percent(true_rate.value, 2)} % of the "
        f"members ({_percent(true_rate.low, 2)} to {_percent(true_rate.high, 2)}; guessing: {_percent(rate, 2)}). "
        + ("The weights reveal membership." if leaks else "This is indistinguishable from guessing.")
    )


def membership_table(plan: ShadowPlan, findings: list[Finding]) -> Table:
    """A row for each attack on each method."""
    columns = [Column("auc", "AUC", digits=3)]
    for rate in FALSE_ALARMS:
        title, detail = f"TPR at {100 * rate:g} %", rate > min(FALSE_ALARMS)
        columns.append(Column(f"tpr_at_{rate}", title, digits=2, detail=detail))
    rows = [
        Row(f"{finding.method}, {name}", [_cell(attack.estimates[column.key], column) for column in columns])
        for finding in findings
        for name, attack in finding.attacks.items()
    ]
    caption = f"Membership on {plan.benchmark}, {plan.runs} shadow runs, 95 % intervals"
    return Table(caption, "method, attack", columns, rows, notes(plan, findings))


def notes(plan: ShadowPlan, findings: list[Finding]) -> list[str]:
    """How to read the numbers."""
    texts = [
        "TPR: % of the members that are identified at that % of false alarms (FPR). Guessing has AUC 0.5, and its TPR "
        "equals the FPR."
    ]
    if findings:
        others = findings[0].runs * findings[0].samples // 2
        alarms = ", ".join(f"{100 * rate:g} % are {round(rate * others)}" for rate in FALSE_ALARMS)
        texts.append(f"There are {others} non-members over all runs: {alarms} false alarms.")
    if plan.runs < ENOUGH:
        texts.append(f"With fewer than {ENOUGH} shadow runs the figures are unreliable.")
    if plan.passes > 1:
        texts.append(f"Each run read its stream {plan.passes} times, which burning after reading forbids: a control.")
    return texts


def as_csv(findings: list[Finding]) -> str:
    """A row for each attack on each method. All numbers are fractions."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"{name}{end}" for name in NUMBERS for end in ("", "_low", "_high")]
    writer.writerow(["method", "attack", "runs", *columns])
    for finding in findings:
        for name, attack in finding.attacks.items():
            values = [value for estimate in attack.estimates.values() for value in astuple(estimate)]
            writer.writerow([finding.method, name, finding.runs, *(f"{value:.5f}" for value in values)])
    return text.getvalue()


def as_data(plan: ShadowPlan, findings: list[Finding]) -> dict[str, Any]:
    """All measurements, and how they were made."""
    return {
        "benchmark": plan.benchmark,
        "runs": plan.runs,
        "seed": plan.seed,
        "passes": plan.passes,
        "attacker": "has the final weights, the warm start, the source, the true labels, and shadow runs of the rest",
        "scored_with": "running BatchNorm statistics, average of the learners",
        "lira_variance": usual_variance(plan.runs),
        "rmia_gamma": 1.0,
        "intervals": f"95 %, bootstrap over pairs of runs and over samples, {ROUNDS} rounds",
        "notes": notes(plan, findings),
        "curve_fpr": [float(rate) for rate in GRID],
        "methods": {
            finding.method: {
                **{name: getattr(finding, name) for name in ("samples", "accuracy_on_members", "accuracy_on_others")},
                "strongest": finding.strongest,
                "in_words": in_words(finding),
                "settings": plan.settings(finding.method).model_dump(mode="json"),
                "attacks": {name: asdict(attack) for name, attack in finding.attacks.items()},
            }
            for finding in findings
        },
    }


def draw_membership(plan: ShadowPlan, findings: list[Finding]) -> bytes:
    """ROC curves on logarithmic axes as a PNG: a panel for each method, with the intervals of the strongest attack."""
    from matplotlib.figure import Figure

    across = min(3, len(findings))
    down = -(-len(findings) // across)
    figure = Figure(figsize=(max(4.5, 3.3 * across), 3.2 * down + 0.3), dpi=150, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(findings) :]:
        panel.set_visible(False)
    for panel, finding in zip(panels, findings, strict=False):
        panel.plot(GRID, GRID, color="black", lw=0.8, ls=":", label="guessing")
        for name, attack in finding.attacks.items():
            colour, style = STYLES[name]
            panel.plot(GRID, attack.curve, color=colour, ls=style, lw=1.4, label=name)
        estimates = finding.attacks[finding.strongest].estimates
        for rate in FALSE_ALARMS:
            bounds = estimates[f"tpr_at_{rate}"]
            panel.plot([rate, rate], [max(bounds.low, GRID[0]), bounds.high], color=STYLES[finding.strongest][0], lw=3)
        auc = estimates["auc"]
        title = f"{finding.method}: {finding.strongest}, AUC {auc.value:.3f} ({auc.low:.3f}–{auc.high:.3f})"
        panel.set_title(title, fontsize=8)
        panel.set(xscale="log", yscale="log", xlim=(GRID[0], 1), ylim=(GRID[0], 1))
        panel.set_xlabel("false positive rate", fontsize=8)
        panel.set_ylabel("true positive rate", fontsize=8)
        panel.grid(alpha=0.25)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(loc="lower right", fontsize=7, framealpha=0.9)
    figure.suptitle(f"Who was in the stream? {plan.benchmark}, {plan.runs} shadow runs", fontsize=10)
    return to_png(figure)


def _cell(estimate: Estimate, column: Column) -> Cell:
    value, low, high = ((1 if column.key == "auc" else 100) * number for number in astuple(estimate))
    return Cell(value, digits=column.digits, interval=(low, high))


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}"
