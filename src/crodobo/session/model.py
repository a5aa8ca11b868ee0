"""The model that a run leaves behind: all learners in one safetensors file that says what it is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from crodobo.config import LearnerSettings
from crodobo.core import pixels
from crodobo.core.prediction import Prediction
from crodobo.engine import make_engine
from crodobo.errors import BadQuery, BadWeights
from crodobo.methods.base import Method
from crodobo.nn.learner import Learner, average
from crodobo.storage.files import write_atomically


class Model:
    """Learners that predict and no longer adapt.

    Parameters
    ----------
    learners
        Their average is the prediction.
    classes
        The classes' names.
    shape
        Channels, height and width of the images that it takes.
    """

    def __init__(self, learners: list[Learner], classes: tuple[str, ...], shape: tuple[int, ...]) -> None:
        self.learners = learners
        self.classes = classes
        self.shape = shape
        self._engine = make_engine(len(learners))

    def predict(self, images: Tensor | np.ndarray) -> Prediction:
        """Predict images, N×C×H×W, uint8 in 0..255 or floats in 0..1."""
        batch = pixels.as_tensor(images)
        if wrong := pixels.misfit(batch, self.shape):
            raise BadQuery(f"the batch {wrong}")
        return average(self.learners, self._engine, pixels.to_unit(batch))


def save_model(path: Path, method: Method) -> None:
    """Write the learners of a method as one model."""
    header = {
        "classes": method.source.classes,
        "shape": method.source.shape,
        "settings": method.settings.model_dump(mode="json", include=set(LearnerSettings.model_fields) - {"weights"}),
        "learners": len(method.learners),
    }
    tensors = {
        f"learners.{number}.{name}": value.contiguous()
        for number, learner in enumerate(method.learners)
        for name, value in learner.network.state_dict().items()
    }
    write_atomically(path, save(tensors, {"crodobo": json.dumps(header)}))


def load_model(path: str | Path) -> Model:
    """Read a model that a run has written."""
    if not Path(path).is_file():
        raise BadWeights(f"there is no model {path}; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = json.loads((file.metadata() or {})["crodobo"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise BadWeights(f"{path} is not a model of crodobo, or is damaged; give a run's model.safetensors") from error
    settings = LearnerSettings.of(**header["settings"] | {"pretrained": False})
    shape, classes = tuple(header["shape"]), tuple(header["classes"])
    learners = []
    for number in range(header["learners"]):
        learner = Learner(shape, len(classes), 0, settings)
        prefix = f"learners.{number}."
        learner.network.load_state_dict(
            {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        )
        learners.append(learner)
    return Model(learners, classes, shape)
