"""Accuracies follow from counts of samples."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crodobo.core.metrics import ConfusionMatrix, StreamRecord
from crodobo.core.prediction import Adaptation, Prediction

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


def counted(predicted: list[int], labels: list[int], classes: int = 4) -> ConfusionMatrix:
    matrix = ConfusionMatrix(classes)
    matrix.update(torch.tensor(predicted), torch.tensor(labels))
    return matrix


def prediction(predicted: list[int], classes: int = 3, confidence: float = 0.8, **more: object) -> Prediction:
    probabilities = torch.full((len(predicted), classes), (1 - confidence) / (classes - 1))
    probabilities[torch.arange(len(predicted)), torch.tensor(predicted)] = confidence
    return Prediction(probabilities, **more)  # type: ignore[arg-type]


def test_rows_are_true_classes_and_columns_predicted_ones() -> None:
    matrix = counted(predicted=[0, 2, 2], labels=[0, 0, 1], classes=3)
    assert matrix.counts.tolist() == [[1, 0, 1], [0, 0, 1], [0, 0, 0]]


def test_accuracies_by_hand() -> None:
    matrix = counted(predicted=[0, 0, 1, 1, 1], labels=[0, 0, 0, 0, 1], classes=3)
    assert matrix.samples == 5
    assert matrix.accuracy == pytest.approx(3 / 5)
    assert matrix.per_class == [0.5, 1.0, None]
    assert matrix.class_average == pytest.approx(0.75)


def test_accuracy_is_zero_without_samples() -> None:
    matrix = ConfusionMatrix(2)
    assert (matrix.samples, matrix.accuracy, matrix.class_average) == (0, 0, 0)
    assert matrix.per_class == [None, None]


@given(pairs=pairs, cut=st.integers(0, 30))
def test_accuracy_is_the_share_of_hits_however_the_samples_are_batched(pairs: list[tuple[int, int]], cut: int) -> None:
    matrix = ConfusionMatrix(4)
    for part in (pairs[:cut], pairs[cut:]):
        if part:
            matrix.update(*(torch.tensor(column) for column in zip(*part, strict=True)))
    assert matrix.samples == len(pairs)
    assert matrix.accuracy == pytest.approx(sum(guess == label for guess, label in pairs) / len(pairs))
    for number, accuracy in enumerate(matrix.per_class):
        of_class = [guess == label for guess, label in pairs if label == number]
        assert accuracy == (pytest.approx(sum(of_class) / len(of_class)) if of_class else None)


def test_eight_bit_labels_do_not_overflow() -> None:
    matrix = ConfusionMatrix(20)
    matrix.update(torch.tensor([13]), torch.tensor([13], dtype=torch.uint8))
    assert matrix.counts[13, 13] == 1


def test_online_accuracy_weighs_samples_not_queries() -> None:
    record = StreamRecord(ConfusionMatrix(3))
    record.add(prediction([0, 1, 2, 0]), torch.tensor([0, 1, 2, 0]), seconds=0.1)
    record.add(prediction([0]), torch.tensor([1]), seconds=0.1)
    assert record.online_accuracy == pytest.approx(4 / 5)
    assert [row.online_accuracy for row in record.rows] == pytest.approx([1, 4 / 5])
    assert [(row.query, row.samples, row.correct) for row in record.rows] == [(1, 4, 4), (2, 1, 0)]


def test_a_row_records_the_adaptation_to_the_query() -> None:
    record = StreamRecord(ConfusionMatrix(3))
    taken = prediction([0, 1], confidence=0.7, agreement=0.5, adaptation=Adaptation(kept=0.25, skipped=1))
    record.add(taken, torch.tensor([0, 2]), seconds=2.0)
    (row,) = record.rows
    assert (row.kept, row.agreement, row.skipped, row.seconds) == (0.25, 0.5, 1, 2.0)
    assert (row.predicted_only, row.restored, record.restored) == (None, 0, [])
    assert row.confidence == pytest.approx(0.7)
    assert record.predicted == [0, 1]
    assert record.confidence == pytest.approx([0.7, 0.7])


def test_a_refused_query_keeps_its_place_and_counts_in_no_accuracy() -> None:
    record = StreamRecord(ConfusionMatrix(3))
    record.add(prediction([0]), torch.tensor([0]), seconds=0.1)
    record.refuse(2, "it is empty")
    record.add(prediction([1]), torch.tensor([1]), seconds=0.1)
    assert record.queries == 3
    assert record.online_accuracy == 1
    assert record.predicted == [0, -1, -1, 1]
    assert len(record.confidence) == 4
    assert record.refused == ["query 2: it is empty"]
    assert [row.query for row in record.rows] == [1, 3]


def test_a_record_restored_from_plain_data_continues() -> None:
    record = StreamRecord(ConfusionMatrix(3))
    restored = Adaptation(restored="the learners had collapsed", predicted_only="few classes")
    record.add(prediction([0, 1], adaptation=restored), torch.tensor([0, 2]), seconds=0.1)
    assert (record.rows[0].predicted_only, record.rows[0].restored) == ("few classes", 1)
    assert record.restored == ["query 1: the learners had collapsed"]
    record.refuse(1, "it is empty")
    again = StreamRecord.from_data(json.loads(json.dumps(record.as_data())))
    assert again.as_data() == record.as_data()
    for each in (record, again):
        each.add(prediction([2]), torch.tensor([2]), seconds=0.2)
    assert again.as_data() == record.as_data()
    assert again.queries == 3
