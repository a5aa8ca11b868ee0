"""Online domain adaptation that burns after reading.

A model trained on a labelled public source adapts itself, query by query, to a private unlabelled stream; each
query is adapted on, predicted, then erased.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crodobo.burn.arena import Arena as Arena
    from crodobo.burn.proof import prove as prove
    from crodobo.client import Answer as Answer
    from crodobo.client import Client as Client
    from crodobo.config import SessionSettings as SessionSettings
    from crodobo.core.prediction import Prediction as Prediction
    from crodobo.core.query import Query as Query
    from crodobo.core.source import Source as Source
    from crodobo.data import Benchmark as Benchmark
    from crodobo.data import load_benchmark as load_benchmark
    from crodobo.data import load_source as load_source
    from crodobo.data import stream as stream
    from crodobo.errors import CrodoboError as CrodoboError
    from crodobo.errors import QueryBurned as QueryBurned
    from crodobo.evaluate.protocols import offline as offline
    from crodobo.evaluate.protocols import one_pass as one_pass
    from crodobo.evaluate.protocols import online as online
    from crodobo.methods import CroDoBo as CroDoBo
    from crodobo.methods import Method as Method
    from crodobo.methods import Single as Single
    from crodobo.methods import SourceOnly as SourceOnly
    from crodobo.methods import get_method as get_method
    from crodobo.nn.learner import Learner as Learner
    from crodobo.session.model import Model as Model
    from crodobo.session.model import load_model as load_model
    from crodobo.session.session import Session as Session
    from crodobo.views.augment import Augment as Augment

__version__ = "0.1.0"

# The public names by module. They are imported on first use: torch takes seconds, `crodobo --help` should not.
_NAMES = {
    "crodobo.burn.arena": "Arena",
    "crodobo.burn.proof": "prove",
    "crodobo.client": "Answer Client",
    "crodobo.config": "SessionSettings",
    "crodobo.core.prediction": "Prediction",
    "crodobo.core.query": "Query",
    "crodobo.core.source": "Source",
    "crodobo.data": "Benchmark load_benchmark load_source stream",
    "crodobo.errors": "CrodoboError QueryBurned",
    "crodobo.evaluate.protocols": "offline one_pass online",
    "crodobo.methods": "CroDoBo Method Single SourceOnly get_method",
    "crodobo.nn.learner": "Learner",
    "crodobo.session.model": "Model load_model",
    "crodobo.session.session": "Session",
    "crodobo.views.augment": "Augment",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'crodobo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
