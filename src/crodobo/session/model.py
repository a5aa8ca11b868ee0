"""The model that a session leaves behind: all learners in one file that says what it is."""

from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from crodobo.config import LearnerSettings
from crodobo.core import pixels
from crodobo.core.prediction import Prediction
from crodobo.engine import make_engine
from crodobo.errors import BadQuery, BadWeights
from crodobo.methods.base import Method
from crodobo.nn.learner import Learner
from crodobo.nn.learners import average
from crodobo.storage.tensors import UnreadableTensors, load_tensors, numbered, save_tensors, with_prefix
from crodobo.views.augment import Augment
from crodobo.views.prediction import prediction_views


class Model:
    """Learners that predict and no longer adapt.

    Parameters
    ----------
    learners
        Their average is the prediction.
    classes
        The class names.
    shape
        Channels, height and width of the images.
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
            raise BadQuery(f"The batch {wrong}.")
        return average(self.learners, self._engine, pixels.to_unit(batch))


def save_model(path: Path, method: Method) -> None:
    """Write the learners of a method as one model."""
    header = {
        "classes": method.source.classes,
        "shape": method.source.shape,
        "settings": method.settings.model_dump(mode="json", include=set(LearnerSettings.model_fields) - {"weights"}),
        "learners": len(method.learners),
        "predict_views": method.settings.predict_views,
        "augment": asdict(method.augment),
    }
    save_tensors(path, numbered([weights_of(learner) for learner in method.learners]), header)


def weights_of(learner: Learner) -> dict[str, Tensor]:
    """The weights of a learner's network, with the BatchNorm statistics of the target where they are kept apart."""
    with learner.target.swapped() if learner.target else nullcontext():
        return dict(learner.network.state_dict())


def load_model(path: str | Path) -> Model:
    """Read a model that a session wrote."""
    if not Path(path).is_file():
        raise BadWeights(f"There is no model {path}.", "Check the path.")
    try:
        tensors, header = load_tensors(Path(path))
        settings = LearnerSettings.of(**header["settings"] | {"pretrained": False})
        shape, classes, count = tuple(header["shape"]), tuple(header["classes"]), int(header["learners"])
        views = partial(prediction_views, count=header["predict_views"], augment=Augment(**header["augment"]))
    except (UnreadableTensors, KeyError, TypeError) as error:
        problem = f"{path} is damaged or not a model of crodobo."
        raise BadWeights(problem, "Use the model.safetensors of a run.") from error
    learners = [Learner(shape, len(classes), 0, settings) for _ in range(count)]
    for number, learner in enumerate(learners):
        learner.network.load_state_dict(with_prefix(f"learners.{number}.", tensors))
        learner.views = views
    return Model(learners, classes, shape)
