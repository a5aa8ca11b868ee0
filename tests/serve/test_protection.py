"""What an administrator can do against bad images, over HTTP: limits of keys, and rollbacks."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from crodobo.core.prediction import Reason
from crodobo.serve.keys import Limits, add_key, limit_key

if TYPE_CHECKING:
    from conftest import Serve, Served

SIZE = 8  # samples per query


class Protected:
    """A service with keys, and requests to it."""

    def __init__(self, served: "Served", file: Path) -> None:
        self.served, self.file = served, file
        self.keys: dict[str, str] = {}

    def add(self, name: str, role: Any = "client", **limits: Any) -> str:
        self.keys[name] = add_key(self.file, name, role, Limits(**limits))
        return name

    def ask(self, method: str, path: str, name: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a response to the owner of a key."""
        headers["Authorization"] = f"Bearer {self.keys[name]}"
        status, _, content = self.served.ask(method, path, body, **headers)
        return status, json.loads(content)

    def predict(self, name: str, parameters: str = "") -> dict[str, Any]:
        """The answer to a query of random images."""
        body, kind = self.served.images(SIZE).tobytes(), "application/octet-stream"
        status, answer = self.ask("POST", f"/v1/predict?{parameters}", name, body, Content_Type=kind)
        assert status == 200, answer
        return answer

    def admin(self, action: str, name: str = "admin") -> tuple[int, dict[str, Any]]:
        return self.ask("POST", f"/admin/{action}", name)

    def metric(self, name: str) -> float:
        return self.served.metric(name, Authorization=f"Bearer {self.keys['admin']}")

    def predicted_only(self) -> dict[str, int]:
        """The metric, by reason."""
        text = self.served.ask("GET", "/metrics", Authorization=f"Bearer {self.keys['admin']}")[2].decode()
        found = re.findall(r'^crodobo_predicted_only_total\{reason="(.+)"\} (.+)$', text, re.MULTILINE)
        return {reason: int(float(count)) for reason, count in found}


@pytest.fixture(scope="module")
def protected(serve: "Serve", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    folder = tmp_path_factory.mktemp("protected")
    file = folder / "keys.json"
    key = add_key(file, "admin", "admin")
    learn_all = "--plain"  # the watch would not learn random images that unsure learners meet
    options = ("--keep-states", "3", "--keep-every", "1", "--checkpoint-every", "1", learn_all)
    with serve(folder / "state", "--keys", str(file), *options) as served:
        one = Protected(served, file)
        one.keys["admin"] = key
        yield one


@pytest.fixture
def outcome(protected: Protected) -> Callable[..., tuple[int, str | None]]:
    """How many images of a query were learned, and why the others were not."""

    def ask(name: str, parameters: str = "") -> tuple[int, str | None]:
        answer = protected.predict(name, parameters)
        return answer["learned"], answer.get("predicted_only")

    return ask


def test_clients_that_share_a_query_do_not_see_each_other(protected: Protected) -> None:
    protected.add("victim")
    protected.add("attacker")
    kind = "application/octet-stream"
    mine = protected.served.images(2, seed=1).tobytes()

    def beside(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The answers to the victim's images and to others that arrive at the same moment."""
        theirs = protected.served.images(SIZE - 2, seed=seed).tobytes()
        path = "/v1/predict?adapt=false&probabilities=true"
        with ThreadPoolExecutor(2) as clients:
            first = clients.submit(protected.ask, "POST", path, "victim", mine, Content_Type=kind)
            second = clients.submit(protected.ask, "POST", path, "attacker", theirs, Content_Type=kind)
            return first.result()[1], second.result()[1]

    (one, other), (two, _) = beside(2), beside(3)
    assert one["query"] == other["query"], "they shared a query"
    assert one["predictions"] == two["predictions"]
    assert (one["samples"], other["samples"]) == (2, SIZE - 2)
    assert not {"agreement", "kept"} & one.keys()


def test_an_answer_says_what_was_learned_of_it(
    protected: Protected, outcome: Callable[..., tuple[int, str | None]]
) -> None:
    before = protected.predicted_only()
    protected.add("shop")
    assert outcome("shop") == (SIZE, None)
    assert outcome("shop", "adapt=false") == (0, "not asked to adapt")
    protected.add("never", adapt=False)
    assert outcome("never", "adapt=true") == (0, "key may not adapt")
    protected.add("some", share=0.5)
    assert outcome("some") == (SIZE // 2, "key limit reached")
    protected.add("seldom", rate=1)
    assert [outcome("seldom") for _ in range(2)] == [(SIZE, None), (0, "key limit reached")]
    limit_key(protected.file, "seldom", Limits(rate=2))  # the next request sees it
    assert outcome("seldom") == (SIZE, None)
    counted = {reason: count - before[reason] for reason, count in protected.predicted_only().items()}
    assert counted.keys() == set(get_args(Reason))
    expected = {"not asked to adapt": 1, "key may not adapt": 1, "key limit reached": 1}
    assert {reason: count for reason, count in counted.items() if count} == expected


def test_an_inference_says_it_too(protected: Protected) -> None:
    protected.add("tensors", adapt=False)
    images = {"name": "images", "shape": [1, 1, 16, 16], "datatype": "UINT8", "data": [0] * 256}
    body = json.dumps({"inputs": [images], "parameters": {"adapt": True}}).encode()
    status, answer = protected.ask("POST", "/v2/models/crodobo/infer", "tensors", body)
    assert (status, answer["parameters"]["learned"]) == (200, 0)
    assert answer["parameters"]["predicted_only"] == "key may not adapt"


def test_an_administrator_rolls_back_by_queries_by_seconds_and_to_a_query(protected: Protected) -> None:
    before = protected.metric("crodobo_rollbacks_total")
    protected.add("honest")
    queries = [protected.predict("honest")["query"] for _ in range(4)]
    assert protected.admin("rollback?queries=1") == (200, {"done": "rollback", "state": "ready", "to": queries[2]})
    assert protected.admin(f"rollback?to={queries[1]}")[1]["to"] == queries[1]
    last = protected.predict("honest")["query"]
    assert last == queries[-1] + 1, "numbers go on"
    assert protected.admin("rollback")[1]["to"] == queries[1], "the last state before the current one"
    assert protected.admin("rollback?seconds=0")[1]["to"] == queries[1]
    assert protected.metric("crodobo_rollbacks_total") == before + 4


def test_a_rollback_that_reaches_too_far_changes_nothing_and_names_the_oldest(protected: Protected) -> None:
    protected.add("client")
    queries = [protected.predict("client")["query"] for _ in range(4)]
    for wanted in ("queries=1000", "seconds=1e9", "to=0"):
        status, answer = protected.admin(f"rollback?{wanted}")
        assert status == 409
        assert answer["error"].startswith("No kept state is")
        assert f"The oldest is from query {queries[1]}, 2 queries" in answer["error"]
    status, answer = protected.admin("rollback?queries=1&to=3")
    assert (status, answer["error"]) == (400, "`queries`, `seconds` and `to` exclude each other. Give one of them.")
    assert protected.admin("rollback", "client")[0] == 403
    assert protected.admin("rollback?queries=1")[1]["to"] == queries[2]


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("queries=some", "`queries` must be a whole number, not 'some'."),
        ("queries=0", "`queries` must be at least 1, not '0'."),
        ("seconds=soon", "`seconds` must be a number, not 'soon'."),
        ("seconds=inf", "`seconds` must be a finite number, not 'inf'."),
        ("to=-1", "`to` must be at least 0, not '-1'."),
    ],
)
def test_a_rollback_with_a_wrong_parameter_gets_a_clear_sentence(
    wanted: str, sentence: str, protected: Protected
) -> None:
    assert protected.admin(f"rollback?{wanted}") == (422, {"error": sentence})
