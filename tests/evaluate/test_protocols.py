"""The protocols count correctly, and a bad query affects nothing else."""

import pytest
import torch
from torch import Generator, Tensor

from crodobo import CrodoboError, Query, QueryBurned, Source, SourceOnly, one_pass, online
from crodobo.core.metrics import StreamRecord


@pytest.fixture
def method() -> SourceOnly:
    images = torch.randint(256, (40, 1, 16, 16), dtype=torch.uint8, generator=Generator().manual_seed(0))
    return SourceOnly(Source(images, torch.arange(40) % 2), warmup=0)


def make_stream(*sizes: int) -> list[tuple[Query, Tensor]]:
    generator = Generator().manual_seed(1)
    return [
        (Query(torch.rand(size, 1, 16, 16, generator=generator)), torch.randint(2, (size,), generator=generator))
        for size in sizes
    ]


def test_online_accuracy_weights_samples_not_queries(method: SourceOnly) -> None:
    stream = make_stream(6, 6, 2)
    record = online(method, stream)
    labels = torch.cat([labels for _, labels in stream])
    correct = int((torch.tensor(record.predicted) == labels).sum())
    assert record.online_accuracy == pytest.approx(correct / len(labels))
    assert [row.samples for row in record.rows] == [6, 6, 2]


def test_every_query_is_burned_before_the_next_is_read(method: SourceOnly) -> None:
    stream = make_stream(4, 4, 4)

    def look(record: StreamRecord) -> None:
        with pytest.raises(QueryBurned):
            _ = stream[record.queries - 1][0].images

    assert online(method, stream, after_query=look).queries == 3


def test_every_query_is_reported_including_refused_ones(method: SourceOnly) -> None:
    stream = make_stream(4, 2)
    stream.insert(1, (Query(torch.full((3, 1, 16, 16), float("nan"))), torch.tensor([0, 1, 0])))
    reported: list[tuple[int, int]] = []
    online(method, stream, after_query=lambda record: reported.append((record.queries, len(record.refused))))
    assert reported == [(1, 0), (2, 1), (3, 1)]


def test_a_bad_query_is_noted_and_the_stream_goes_on(method: SourceOnly) -> None:
    stream = make_stream(4, 4, 4)
    spoiled = torch.full((3, 1, 16, 16), float("nan"))
    stream.insert(1, (Query(spoiled), torch.tensor([0, 1, 0])))
    record = online(method, stream)
    assert record.queries == 4
    assert record.confusion.samples == 12
    assert record.predicted[4:7] == [-1, -1, -1]
    assert len(record.refused) == 1
    assert "query 2: The query has NaN" in record.refused[0]
    assert not spoiled.any(), "a refused query is burned too"


@pytest.mark.parametrize("labels", [[0], [0, 1, 2], [0, 1, -1], [[0, 1, 0]]])
def test_labels_that_do_not_fit_are_refused_before_anything_is_learned(method: SourceOnly, labels: list[int]) -> None:
    before = {name: value.clone() for name, value in method.state().items()}
    with pytest.raises(CrodoboError, match=r"do not fit its 3 samples\. Give one label from 0 to 1 for each sample\."):
        online(method, [(Query(torch.rand(3, 1, 16, 16)), torch.tensor(labels))])
    assert all(torch.equal(before[name], value) for name, value in method.state().items())


def test_a_record_can_be_continued(method: SourceOnly) -> None:
    stream = make_stream(4, 4, 4)
    record = online(method, stream[:1])
    again = StreamRecord.from_data(record.as_data())
    assert [row.query for row in online(method, stream[1:], again).rows] == [1, 2, 3]


def test_one_pass_scores_the_whole_target(method: SourceOnly) -> None:
    images, labels = torch.rand(10, 1, 16, 16), torch.arange(10) % 2
    confusion = one_pass(method, images, labels, size=4)
    expected = torch.cat([method.predict(batch).labels for batch in images.split(4)])
    assert confusion.samples == 10
    assert confusion.accuracy == pytest.approx(int((expected == labels).sum()) / 10)
