"""The tables of comparisons and studies, and the paper's figures in them."""

import statistics
from collections.abc import Callable

import pytest

from crodobo.evaluate import paper
from crodobo.evaluate.comparison import Entry, Results
from crodobo.evaluate.comparison.results import mean_and_deviation
from crodobo.evaluate.comparison.studies import STUDIES, Study
from crodobo.evaluate.report.comparison_tables import cost_table, main_table, study_table
from crodobo.evaluate.report.table import Table
from crodobo.methods import REGISTRY

Fabricate = Callable[..., Results]
BENCHMARKS = ("visda-c", "covid-da", "camelyon17", "fashion")
REPRINTED = {"erm", "group-dro", "irm", "fish"}  # domain generalisation, which the paper did not run itself
STUDIED = (*BENCHMARKS, "visda-c-hrnet")
OF_THE_PAPER = [(name, benchmark) for name in STUDIES for benchmark in STUDIED if paper.study_table(name, benchmark)]


def entries(*names: str) -> list[Entry]:
    return [Entry(name, name, name) for name in names]


def column(table: Table, key: str) -> dict[str, float | None]:
    """The values of a column, by row label."""
    number = [each.key for each in table.columns].index(key)
    return {row.label: row.cells[number].value for row in table.rows}


def texts(table: Table, label: str) -> dict[str, str]:
    """The cells of a row as shown, by column key."""
    row = next(row for row in table.rows if row.label == label)
    return {each.key: table.text(row, number) for number, each in enumerate(table.columns)}


def keys(table: Table) -> list[str]:
    return [each.key for each in table.columns]


def study_results(fabricate: Fabricate, study: Study, benchmark: str) -> Results:
    """Results with two seeds and different figures for each entry."""
    online = {entry.key: [40.0 + number, 42.0 + number] for number, entry in enumerate(study.entries)}
    return fabricate(study.entries, online, benchmark=benchmark)


def test_the_main_table_shows_means_deviations_and_missing_values(fabricate: Fabricate) -> None:
    online = {"source-only": [50.0, 54.0], "crodobo": [80.0, 83.0]}
    table = main_table(fabricate(entries("source-only", "dan", "crodobo"), online))
    assert keys(table) == ["class_plane", "class_bike", "online", "one_pass"]
    assert texts(table, "source-only") == {
        "class_plane": "52.0",
        "class_bike": "–",
        "online": "52.0 ± 2.8",
        "one_pass": "57.0 ± 2.8",
    }
    assert set(texts(table, "dan").values()) == {"–"}
    assert [table.is_best(row, 2) for row in table.rows] == [False, False, True]
    assert table.caption == "Accuracy on glyphs (%), seeds 0, 1, mean ± standard deviation"


def test_a_single_seed_has_no_deviation(fabricate: Fabricate) -> None:
    table = main_table(fabricate(entries("ent", "dan"), {"ent": [50.0], "dan": [60.0]}))
    assert texts(table, "dan")["online"] == "60.0"
    assert "_sd" not in table.to_csv()
    assert "±" not in table.to_markdown() + table.to_latex()
    assert r"\pm" not in table.to_latex()
    assert table.caption == "Accuracy on glyphs (%), seed 0"


def test_methods_that_keep_target_data_do_not_compete(fabricate: Fabricate) -> None:
    online = {"ent": [50.0], "crodobo": [80.0], "conda": [90.0]}
    results = fabricate(entries("ent", "crodobo", "conda", "shot"), online, offline={"ent": [60.0], "shot": [95.0]})
    table = main_table(results)
    assert [(row.label, row.mark, row.competes) for row in table.rows] == [
        ("ent", "", True),
        ("crodobo", "", True),
        ("conda", "†", False),
        ("shot", "†", False),
    ]
    number = keys(table).index("online")
    assert [table.is_best(row, number) for row in table.rows] == [False, True, False, False]
    assert column(table, "offline") == {"ent": 60.0, "crodobo": None, "conda": None, "shot": 95.0}
    assert texts(table, "shot")["online"] == "–"
    assert texts(table, "shot")["class_bike"] == "95.0", "classes are offline for methods without an online form"
    assert any(note.startswith("† keeps target data") for note in table.notes)
    assert "Offline: 3 epochs over both domains, then a score on the whole target." in table.notes


def test_no_notes_without_target_keepers_and_offline_runs(fabricate: Fabricate) -> None:
    table = main_table(fabricate(entries("ent"), {"ent": [50.0]}))
    assert table.notes == ["Classes are one-pass."]
    assert "offline" not in keys(table)


def test_costs_are_means_and_the_cheapest_is_the_best(fabricate: Fabricate) -> None:
    results = fabricate(
        entries("ent", "crodobo", "conda"), {name: [50.0, 60.0] for name in ("ent", "crodobo", "conda")}
    )
    rows = {row.entry.key: row for row in results.rows}
    for seed, seconds in enumerate((0.25, 0.75)):
        rows["crodobo"].online[seed]["seconds_per_query"] = seconds
        rows["conda"].online[seed]["seconds_per_query"] = 0.0
    table = cost_table(results)
    assert texts(table, "crodobo") == {"seconds_per_query": "0.500", "peak_mb": "400"}
    assert [table.is_best(row, 0) for row in table.rows] == [True, False, False]
    offline = cost_table(fabricate(entries("ent", "shot"), {"ent": [50.0]}, offline={"shot": [60.0]}))
    assert texts(offline, "shot") == {"seconds_per_query": "–", "peak_mb": "–", "offline_seconds": "60"}


def test_a_table_without_results_can_be_written(fabricate: Fabricate) -> None:
    for study in STUDIES.values():
        assert "–" in study_table(fabricate(study.entries, {}), study).to_markdown()
    table = main_table(fabricate(entries("ent"), {}))
    assert texts(table, "ent") == {"online": "–", "one_pass": "–"}


def test_a_sweep_has_mean_and_sample_variance_over_its_values(fabricate: Fabricate) -> None:
    study = STUDIES["tau"]
    values = [50.0, 52.0, 55.0, 53.0, 60.0, 51.0]
    online = {entry.key: [value - 1, value + 1] for entry, value in zip(study.entries, values, strict=True)}
    table = study_table(fabricate(study.entries, online), study)
    assert keys(table) == ["0.5", "0.6", "0.7", "0.8", "0.9", "0.95", "mean", "variance"]
    assert [row.label for row in table.rows] == ["online", "one-pass"]
    row = table.rows[0]
    assert [cell.value for cell in row.cells[:-2]] == pytest.approx(values)
    assert row.cells[-2].value == pytest.approx(statistics.fmean(values))
    assert row.cells[-1].value == pytest.approx(statistics.variance(values))
    assert row.cells[-1].value != pytest.approx(statistics.pvariance(values))
    assert texts(table, "online")["0.5"] == "50.0 ± 1.4"
    assert texts(table, "online")["variance"] == f"{statistics.variance(values):.2f}"
    assert column(table, "mean")["one-pass"] == pytest.approx(statistics.fmean(values) + 5)


def test_a_sweep_ignores_failed_runs(fabricate: Fabricate) -> None:
    study = STUDIES["lambda"]
    table = study_table(fabricate(study.entries, {"0.1": [50.0], "1.0": [60.0]}), study)
    shown = [table.text(table.rows[0], number) for number in range(7)]
    assert shown == ["50.0", "–", "–", "–", "60.0", "55.0", "50.00"]


def test_a_grid_has_a_row_for_each_method_and_the_sample_variance_over_its_columns(fabricate: Fabricate) -> None:
    study = STUDIES["randomness"]
    values = {"cdan": [50.0, 51.0, 53.0, 52.0, 58.0], "crodobo": [70.0, 71.0, 70.5, 69.0, 72.0]}
    online = {f"{name}-order{order}": [each[order]] for name, each in values.items() for order in range(5)}
    table = study_table(fabricate(study.entries, online), study)
    assert keys(table) == [*(f"rand {order}" for order in range(5)), "mean", "variance"]
    assert [row.label for row in table.rows] == ["cdan", "crodobo"]
    for name, each in values.items():
        row = next(row for row in table.rows if row.label == name)
        assert [cell.value for cell in row.cells[:5]] == pytest.approx(each)
        assert row.cells[5].value == pytest.approx(statistics.fmean(each))
        assert row.cells[6].value == pytest.approx(statistics.variance(each))
        assert texts(table, name)["variance"] == f"{statistics.variance(each):.2f}"


def test_a_grid_without_spread_only_has_columns_for_streams(fabricate: Fabricate) -> None:
    study = STUDIES["orders"]
    table = study_table(study_results(fabricate, study, "glyphs"), study)
    assert keys(table) == ["random", "dirichlet(1)", "drift", "dirichlet(0.1)", "by-class"]
    assert len(table.rows) == 9
    assert all(len(row.cells) == 5 for row in table.rows)


def test_mean_and_deviation_are_those_of_a_sample() -> None:
    assert mean_and_deviation([2.0, 4.0, 9.0]) == pytest.approx((5.0, statistics.stdev([2.0, 4.0, 9.0])))
    assert mean_and_deviation([1.0]) == (1.0, None)
    assert mean_and_deviation([]) == (None, None)


@pytest.mark.parametrize(("name", "benchmark"), OF_THE_PAPER)
def test_the_entries_of_a_study_match_the_figures_of_the_paper(name: str, benchmark: str) -> None:
    study, printed = STUDIES[name], paper.study_table(name, benchmark)
    if study.layout == "grid":
        assert {entry.row for entry in study.entries} == printed.keys()
        assert {len(figures.orders) for figures in printed.values()} == {len({e.column for e in study.entries})}
    else:
        assert {entry.key for entry in study.entries} == printed.keys()


def test_every_study_except_ours_is_in_the_paper() -> None:
    assert {name for name, _ in OF_THE_PAPER} == STUDIES.keys() - {"orders"}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_methods_of_the_paper_are_registered(benchmark: str) -> None:
    assert paper.study_table("main", benchmark).keys() - REPRINTED <= REGISTRY.keys()


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_main_table_has_the_paper_s_figures_beside_the_measured_ones(fabricate: Fabricate, benchmark: str) -> None:
    names = [*REGISTRY]
    online = {name: [50.0] for name in names if "online" in REGISTRY[name].protocols}
    table = main_table(fabricate(entries(*names), online, benchmark=benchmark, offline={"shot": [70.0]}))
    assert keys(table)[-3:] == ["paper_online", "paper_one_pass", "paper_offline"]
    printed = paper.study_table("main", benchmark)
    for key in ("online", "one_pass", "offline"):
        assert column(table, f"paper_{key}") == {name: getattr(printed.get(name), key, None) for name in names}
    assert not any(table.is_best(row, keys(table).index("paper_online")) for row in table.rows)
    assert f"The paper's figures: {paper.citation(benchmark)}; its backbone and protocol may differ" in table.notes[-1]


def test_the_headline_figures_are_in_the_main_table(fabricate: Fabricate) -> None:
    table = main_table(fabricate(entries("dan", "crodobo"), {"dan": [50.0], "crodobo": [60.0]}, benchmark="visda-c"))
    measured = {"class_plane": "60.0", "class_bike": "–", "online": "60.0", "one_pass": "65.0"}
    printed = {"paper_online": "79.4", "paper_one_pass": "84.0", "paper_offline": "–"}
    assert texts(table, "crodobo") == measured | printed
    assert texts(table, "dan")["paper_offline"] == "57.8"
    assert "Table 1, ResNet-101" in table.notes[-1]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("bootstrap", {"w/o CroDoBo": ("78.5", "84.0"), "w/ CroDoBo": ("79.4", "84.0")}),
        (
            "objectives",
            {
                "default (w/o CroDoBo)": ("78.5", "84.0"),
                "w/o ℓ_ent": ("63.7", "53.1"),
                "w/o ℓ_div": ("72.6", "73.0"),
                "ℓ_ent + ℓ_div → pseudo-labels": ("70.2", "70.0"),
                "ℓ_ent + ℓ_div → MixMatch": ("73.0", "75.3"),
                "ℓ_t → MixMatch": ("76.3", "81.5"),
                "RandAugment on ℓ_ent, ℓ_div": ("77.6", "83.7"),
            },
        ),
        ("continual", {"ConDA": ("–", "84.6"), "Continual CroDoBo": ("80.0", "85.1"), "CroDoBo": ("82.9", "86.8")}),
    ],
)
def test_a_study_of_rows_has_the_paper_s_figures(
    name: str, cells: dict[str, tuple[str, str]], fabricate: Fabricate
) -> None:
    benchmark = "visda-c-hrnet" if name == "continual" else "visda-c"
    table = study_table(study_results(fabricate, STUDIES[name], benchmark), STUDIES[name])
    found = {label: (texts(table, label)["paper_online"], texts(table, label)["paper_one_pass"]) for label in cells}
    assert found == cells
    assert [row.label for row in table.rows] == list(cells)
    assert "paper_offline" not in keys(table)
    assert paper.citation(benchmark, study=name) in table.notes[-1]
    assert ("class_plane" in keys(table)) == STUDIES[name].per_class


def test_the_study_of_pseudo_labels_only_shows_the_online_figures_of_the_paper(fabricate: Fabricate) -> None:
    table = study_table(study_results(fabricate, STUDIES["pseudo-labels"], "visda-c"), STUDIES["pseudo-labels"])
    assert keys(table)[-1:] == ["paper_online"]
    assert "paper_one_pass" not in keys(table)
    assert column(table, "paper_online") == {
        "u: MixMatch, v: FixMatch": 74.3,
        "u, v: MixMatch": 71.6,
        "CroDoBo": 79.4,
    }
    assert "Table 8 of the supplementary material" in table.notes[-1]


@pytest.mark.parametrize("name", ["lambda", "tau"])
def test_a_sweep_has_the_paper_s_figures(name: str, fabricate: Fabricate) -> None:
    table = study_table(study_results(fabricate, STUDIES[name], "visda-c"), STUDIES[name])
    assert [row.label for row in table.rows] == ["online", "one-pass", "paper online", "paper one-pass"]
    for key, figures in paper.study_table(name, "visda-c").items():
        assert texts(table, "paper online")[key] == f"{figures.online:.1f}"
        assert texts(table, "paper one-pass")[key] == f"{figures.one_pass:.1f}"
    assert paper.citation("visda-c", study=name) in table.notes[-1]


@pytest.mark.parametrize(
    ("name", "row", "mean", "variance"),
    [
        ("lambda", "paper online", 78.0, 3.1),
        ("lambda", "paper one-pass", 82.9, 2.4),
        ("tau", "paper online", 77.5, 2.3),
        ("tau", "paper one-pass", 82.7, 2.0),
    ],
)
def test_a_sweep_shows_the_mean_and_variance_that_the_paper_prints(
    name: str, row: str, mean: float, variance: float, fabricate: Fabricate
) -> None:
    table = study_table(study_results(fabricate, STUDIES[name], "visda-c"), STUDIES[name])
    assert column(table, "mean")[row] == pytest.approx(mean, abs=0.051)
    assert column(table, "variance")[row] == pytest.approx(variance, abs=0.051)


@pytest.mark.parametrize(
    ("benchmark", "method", "orders", "mean", "variance"),
    [
        ("fashion", "cdan", ["45.4", "47.4", "46.7", "46.3", "46.2"], "46.4", "0.54"),
        ("fashion", "crodobo", ["49.1", "48.9", "46.3", "46.5", "48.9"], "47.9", "1.99"),
        ("visda-c", "cdan", ["62.3", "61.0", "61.9", "61.6", "61.9"], "61.7", "0.21"),
        ("visda-c", "crodobo", ["79.4", "78.6", "79.6", "79.2", "79.4"], "79.2", "0.15"),
    ],
)
def test_the_study_of_random_orders_has_the_paper_s_figures(
    benchmark: str, method: str, orders: list[str], mean: str, variance: str, fabricate: Fabricate
) -> None:
    table = study_table(study_results(fabricate, STUDIES["randomness"], benchmark), STUDIES["randomness"])
    assert [row.label for row in table.rows] == ["cdan", "cdan, paper", "crodobo", "crodobo, paper"]
    found = texts(table, f"{method}, paper")
    assert [found[f"rand {order}"] for order in range(5)] == orders
    assert "Table 9 of the supplementary material" in table.notes[-1]
    assert not any(table.is_best(row, n) for row in table.rows[1::2] for n in range(7))
    assert (found["mean"], found["variance"]) == (mean, variance)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_a_study_on_our_benchmark_shows_no_figures_of_the_paper(study: Study, fabricate: Fabricate) -> None:
    table = study_table(study_results(fabricate, study, "glyphs"), study)
    text = table.to_markdown() + table.to_csv()
    assert "paper" not in text.lower()
    assert not any("paper" in key for key in keys(table))


def test_the_main_table_on_our_benchmark_shows_no_figures_of_the_paper(fabricate: Fabricate) -> None:
    assert "paper" not in main_table(fabricate(entries("ent", "crodobo"), {"ent": [50.0]})).to_markdown().lower()
