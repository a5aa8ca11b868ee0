"""The formats of requests and answers: the Open Inference Protocol for arrays, forms for image files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from crodobo.errors import BadQuery

if TYPE_CHECKING:
    from httpx2 import Response

LENGTH = "Inference-Header-Content-Length"
KEY = "Idempotency-Key"
ALIGNMENT = 64  # bytes; the pixels start at a multiple of it, so the service need not move them
File = str | PathLike[str]
KeyPair = tuple[File, File]  # a certificate and its private key


@dataclass(frozen=True, eq=False)
class Answer:
    """The service's predictions, a row for each image.

    `receipts` holds the id of the receipt that each image's query left in the service's ledger, `queries` the number of
    the query. The images of one call may be spread over several queries, and share them with images of other clients.
    `learned` is how many of the images were learned, None if the service does not say; `reasons` says why, if some were
    predicted only.
    """

    labels: list[str]
    confidence: np.ndarray
    probabilities: np.ndarray | None
    receipts: list[str]
    queries: list[int]
    learned: int | None = None
    reasons: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


def join(answers: Sequence[Answer]) -> Answer:
    """Join several answers into one."""
    probabilities = [answer.probabilities for answer in answers if answer.probabilities is not None]
    return Answer(
        labels=[label for answer in answers for label in answer.labels],
        confidence=np.concatenate([answer.confidence for answer in answers]),
        probabilities=np.concatenate(probabilities) if probabilities else None,
        receipts=[receipt for answer in answers for receipt in answer.receipts],
        queries=[query for answer in answers for query in answer.queries],
        learned=None if None in (counts := [answer.learned for answer in answers]) else sum(filter(None, counts)),
        reasons=tuple(dict.fromkeys(reason for answer in answers for reason in answer.reasons)),
    )


def as_array(images: Any) -> np.ndarray:
    """Images as an array of a type that the service accepts."""
    if hasattr(images, "detach"):  # a tensor
        images = images.detach().cpu()
        images = (images.float() if images.is_floating_point() else images).numpy()
    array = np.asarray(images)
    if array.ndim != 4 or not array.size:
        remedy = "Use samples × channels × height × width, with at least one sample."
        raise BadQuery(f"The images have shape {array.shape}.", remedy)
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise BadQuery(f"The images have type {array.dtype}.", "Use uint8 (0 to 255) or floats (0 to 1).")
    return np.ascontiguousarray(array, np.uint8 if array.dtype == np.uint8 else np.dtype("<f4"))


def infer_request(images: np.ndarray, outputs: Sequence[str], control: dict[str, Any]) -> tuple[bytes, int]:
    """The body of a request with a binary tensor, and the length of its JSON."""
    datatype = "UINT8" if images.dtype == np.uint8 else "FP32"
    size = {"binary_data_size": images.nbytes}
    request = {
        "inputs": [{"name": "images", "shape": list(images.shape), "datatype": datatype, "parameters": size}],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs],
        "parameters": control,
    }
    header = json.dumps(request).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    return header + images.tobytes(), len(header)


def as_object(response: "Response") -> dict[str, Any]:
    """The JSON object that a response holds."""
    return dict(response.json())


def infer_answer(response: "Response") -> Answer:
    """The answer to a request with a binary tensor."""
    length = int(response.headers[LENGTH])
    header, content = json.loads(response.content[:length]), memoryview(response.content)[length:]
    found: dict[str, Any] = {}
    for output in header["outputs"]:
        size = output["parameters"]["binary_data_size"]
        part, content = content[:size], content[size:]
        is_text = output["datatype"] == "BYTES"
        values = list(unpack_texts(part)) if is_text else np.frombuffer(part, "<f4").reshape(output["shape"])
        found[output["name"]] = values
    count = len(found["labels"])
    return Answer(**{"probabilities": None} | found, **facts_of(header["parameters"], count))


def facts_of(facts: dict[str, Any], count: int) -> dict[str, Any]:
    """What an answer to so many images says about their query. A service of an earlier version says less."""
    return {
        "receipts": [str(facts["receipt"])] * count,
        "queries": [int(facts["query"])] * count,
        "learned": facts.get("learned"),
        "reasons": (str(reason),) if (reason := facts.get("predicted_only")) else (),
    }


def unpack_texts(content: memoryview) -> Iterator[str]:
    """The strings of a tensor, each stored after its length."""
    place = 0
    while place < len(content):
        length = int.from_bytes(content[place : place + 4], "little")
        place += 4 + length
        yield bytes(content[place - length : place]).decode()


def plain_answer(response: "Response", classes: Sequence[str]) -> Answer:
    """The answer to a form with image files."""
    found = response.json()
    rows, count = found["predictions"], len(found["predictions"])
    shares = [[row["probabilities"][name] for name in classes] for row in rows if "probabilities" in row]
    return Answer(
        labels=[str(row["label"]) for row in rows],
        confidence=np.array([row["confidence"] for row in rows], np.float32),
        probabilities=np.array(shares, np.float32) if shares else None,
        **facts_of(found, count),
    )
