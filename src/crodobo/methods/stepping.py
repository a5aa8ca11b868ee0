"""How a method takes a query: protect, adapt in several steps, predict, and learn on while nobody waits."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from crodobo.config import Order
from crodobo.core.prediction import Adaptation, Prediction, join_adaptations
from crodobo.core.query import Query
from crodobo.methods.apart import answer_apart
from crodobo.nn.learners import average

if TYPE_CHECKING:
    from crodobo.methods.base import Method


class Idle(NamedTuple):
    """Further steps on a query after it has been answered.

    `answer` is called with the prediction before the first of them, `free` before each: false ends them.
    """

    steps: int
    answer: Callable[[Prediction], None]
    free: Callable[[], bool]


class Wanted(NamedTuple):
    """How a query is to be taken. The options are those of `Method.step`."""

    order: Order
    rows: Tensor | None = None
    idle: Idle | None = None
    owners: Tensor | None = None


def take(method: "Method", query: Query, images: Tensor, wanted: Wanted) -> Prediction:
    """Adapt to a query and predict it, as far as the guard allows it."""
    learned = images if wanted.rows is None else query.own(images[wanted.rows])
    method.choose_views(learned)
    guard, engine, apart = method.guard, method.engine, predict_apart(method, query, wanted.owners)
    found = guard.before(images, engine, len(learned))
    if found.predicted_only and not guard.follows:
        prediction = replace(average(method.learners, engine, images, norm="running"), adaptation=found)
    else:
        prediction = adapt_and_predict(method, query, images, learned, wanted.order)
        told = replace(prediction.adaptation, predicted_only=found.predicted_only, restored=found.restored)
        prediction = replace(prediction, adaptation=told)
    prediction = guard.after(images, prediction, engine)
    if apart:
        prediction = replace(prediction, probabilities=apart.probabilities, agreement=None)
    if learn_on(method, query, learned, prediction, wanted.idle):
        restored = guard.after_more_steps(images, engine)
        prediction = replace(prediction, adaptation=replace(prediction.adaptation, restored=restored))
    guard.end_query()
    return prediction


def adapt_and_predict(method: "Method", query: Query, images: Tensor, learned: Tensor, order: Order) -> Prediction:
    """The two halves of a step, in this order."""
    if order == "adapt-then-predict":
        adaptation = adapt_in_steps(method, query, learned)
        method.guard.before_answer(images, method.engine)
        return replace(average(method.learners, method.engine, images), adaptation=adaptation)
    prediction = average(method.learners, method.engine, images)
    method.guard.answered = True
    return replace(prediction, adaptation=adapt_in_steps(method, query, learned))


def adapt_in_steps(method: "Method", query: Query, images: Tensor) -> Adaptation:
    """Adapt to a query as often as the settings and the guard say. What a step derives from the query is burned."""
    steps, budget = method.settings.steps, method.settings.budget
    started, each = time.perf_counter(), list[Adaptation]()
    while True:
        with query.temporary():
            each.append(method.adapt(query, images))
        elapsed, done = time.perf_counter() - started, len(each)
        enough = done >= steps if budget is None else elapsed * (done + 1) / done > budget
        if enough or each[-1].skipped or not method.goes_on():
            return replace(join_adaptations(each), skipped=each[-1].skipped, bootstrap=each[-1].bootstrap)


def learn_on(method: "Method", query: Query, images: Tensor, prediction: Prediction, idle: Idle | None) -> bool:
    """Answer, and take further steps while nobody waits. Returns whether any was taken."""
    adaptation = prediction.adaptation
    if not idle or adaptation.predicted_only or adaptation.restored or adaptation.skipped or not method.goes_on():
        return False
    idle.answer(prediction)
    for step in range(idle.steps):
        if not idle.free() or not method.goes_on():
            return step > 0
        with query.temporary():
            skipped = method.adapt(query, images).skipped
        if skipped:
            break
    return True


def predict_apart(method: "Method", query: Query, owners: Tensor | None) -> Prediction | None:
    """The prediction of a query for each of its owners; None if there is one owner only."""
    if owners is None or (owners == owners[0]).all():
        return None
    guard, engine = method.guard, method.engine
    with query.temporary():
        return answer_apart(
            query.pixels(),
            owners,
            query.own,
            together=lambda images: guard.predict(images, engine),
            alone=lambda images: guard.predict_each(images, engine),
        )
