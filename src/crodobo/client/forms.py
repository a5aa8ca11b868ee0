"""What goes over the wire: images as requests of the Open Inference Protocol, and what comes back as answers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np

from crodobo.errors import BadQuery

LENGTH = "Inference-Header-Content-Length"
ALIGNED = 64  # bytes; where the pixels begin, so that the service need not move them


@dataclass(frozen=True, eq=False)
class Answer:
    """What a service says of images, a row for each.

    `receipts` has the id of the receipt that each image's query left in the service's ledger, `queries` the query's
    number. Images of one call may have met several queries, and shared one with those of others.
    """

    labels: list[str]
    confidence: np.ndarray
    probabilities: np.ndarray | None
    receipts: list[str]
    queries: list[int]

    def __len__(self) -> int:
        return len(self.labels)


def joined(answers: Sequence[Answer]) -> Answer:
    """Several answers as one."""
    probabilities = [answer.probabilities for answer in answers if answer.probabilities is not None]
    return Answer(
        labels=[label for answer in answers for label in answer.labels],
        confidence=np.concatenate([answer.confidence for answer in answers]),
        probabilities=np.concatenate(probabilities) if probabilities else None,
        receipts=[receipt for answer in answers for receipt in answer.receipts],
        queries=[query for answer in answers for query in answer.queries],
    )


def as_array(images: Any) -> np.ndarray:
    """Images as numbers that the service takes.

    >>> as_array(np.ones((1, 1, 2, 2))).dtype
    dtype('float32')
    """
    if hasattr(images, "detach"):  # a tensor
        images = images.detach().cpu()
        images = (images.float() if images.is_floating_point() else images).numpy()
    array = np.asarray(images)
    if array.ndim != 4 or not array.size:
        raise BadQuery(
            f"images come as samples × channels × height × width, at least one; these have shape {array.shape}"
        )
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise BadQuery(f"images are uint8 (0 to 255) or floats (0 to 1), not {array.dtype}")
    return np.ascontiguousarray(array, np.uint8 if array.dtype == np.uint8 else np.dtype("<f4"))


# The binary tensor extension of the Open Inference Protocol


def infer_request(images: np.ndarray, outputs: Sequence[str], control: dict[str, Any]) -> tuple[bytes, int]:
    """A request's body, and how much of it is JSON."""
    datatype = "UINT8" if images.dtype == np.uint8 else "FP32"
    size = {"binary_data_size": images.nbytes}
    asked = {
        "inputs": [{"name": "images", "shape": list(images.shape), "datatype": datatype, "parameters": size}],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs],
        "parameters": control,
    }
    header = json.dumps(asked).encode()
    header += b" " * (-len(header) % ALIGNED)
    return header + images.tobytes(), len(header)


def infer_answer(response: httpx2.Response) -> Answer:
    """The answer to such a request."""
    length = int(response.headers[LENGTH])
    facts, content = json.loads(response.content[:length]), memoryview(response.content)[length:]
    found: dict[str, Any] = {}
    for output in facts["outputs"]:
        size = output["parameters"]["binary_data_size"]
        piece, content = content[:size], content[size:]
        is_text = output["datatype"] == "BYTES"
        values = list(texts(piece)) if is_text else np.frombuffer(piece, "<f4").reshape(output["shape"])
        found[output["name"]] = values
    count = len(found["labels"])
    receipt, query = str(facts["parameters"]["receipt"]), int(facts["parameters"]["query"])
    return Answer(**{"probabilities": None} | found, receipts=[receipt] * count, queries=[query] * count)


def texts(content: memoryview) -> Iterator[str]:
    """The texts of a tensor of them, each after its length.

    >>> list(texts(memoryview(b"\\x03\\x00\\x00\\x00cat\\x00\\x00\\x00\\x00")))
    ['cat', '']
    """
    place = 0
    while place < len(content):
        length = int.from_bytes(content[place : place + 4], "little")
        place += 4 + length
        yield bytes(content[place - length : place]).decode()


def plain_answer(response: httpx2.Response, classes: Sequence[str]) -> Answer:
    """The answer to image files."""
    found = response.json()
    rows, count = found["predictions"], len(found["predictions"])
    probabilities = None
    if count and "probabilities" in rows[0]:
        probabilities = np.array([[row["probabilities"][name] for name in classes] for row in rows], np.float32)
    return Answer(
        labels=[str(row["label"]) for row in rows],
        confidence=np.array([row["confidence"] for row in rows], np.float32),
        probabilities=probabilities,
        receipts=[str(found["receipt"])] * count,
        queries=[int(found["query"])] * count,
    )
