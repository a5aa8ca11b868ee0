"""ConDA: adapt to the query together with selected samples of earlier queries."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crodobo.config import MethodSettings, NonNegative, Positive
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.errors import BadSettings
from crodobo.losses import diversity, entropy, mixup
from crodobo.methods.base import Method
from crodobo.methods.mixing import beta
from crodobo.nn.learner import Learner


class ConDASettings(MethodSettings):
    """The size of the buffer, and the weight of the mixtures."""

    buffer: Positive = 256
    mix_weight: NonNegative = 1.0


class ConDA(Method):
    """Continual adaptation with a buffer: the most confident samples of each class are mixed with later queries.

        ℓ = mean H(p) − H(mean p) + w · CE(ŷ, p(x))
        x = μ x_t + (1 − μ) x_buffer,  ŷ = μ ŷ_t + (1 − μ) ŷ_buffer

    The classifier is frozen and the source is not used. There is no public code; this follows the description.

    **Keeps.** Up to 256 target samples with their pseudo-labels, until more confident ones replace them.

    **Use it** to measure the gain from keeping target samples. It is refused where burning is on.

    **Reference.** Taufique, Jahan and Savakis, *ConDA: Continual Unsupervised Domain Adaptation*, CVPR workshops 2021.

    Parameters
    ----------
    buffer
        The number of target samples to keep, the same for each class.
    mix_weight
        Weight w of the cross-entropy on the mixtures.
    """

    name = "conda"
    keeps_target = True
    Settings = ConDASettings
    settings: ConDASettings

    def prepare(self, learner: Learner) -> None:
        learner.network.classifier.requires_grad_(False)
        classes = len(self.source.classes)
        places = self.settings.buffer // classes
        if not places:
            problem = f"A buffer of {self.settings.buffer} is too small for {classes} classes."
            raise BadSettings(problem, f"It needs at least {classes} places.", settings=("buffer",))
        learner.attach("buffer", lambda: Buffer(classes, places, self.source.shape))

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        weak = query.own(self.augment.weak(images, self.generator))
        updated = self.engine.map(lambda learner: self.learn(learner, query, images, weak), self.learners)
        return Adaptation(skipped=updated.count(False))

    def learn(self, learner: Learner, query: Query, images: Tensor, weak: Tensor) -> bool:
        """Step on the query and its mixtures with the buffer, then put the most confident samples into the buffer."""
        buffer = learner.part("buffer")
        assert isinstance(buffer, Buffer)
        logits = learner.forward(weak)
        probabilities = torch.softmax(logits.detach(), dim=1)
        learner.accumulate(entropy(logits) + diversity(logits))
        if buffer.filled.any():
            kept, labels = buffer.draw(len(images), learner.generator)
            kept = query.own(self.augment.weak(kept, learner.generator))
            share = beta(len(images), learner.generator)
            guesses, classes = probabilities.argmax(dim=1), probabilities.shape[1]
            targets = mixup(F.one_hot(guesses, classes).float(), F.one_hot(labels, classes).float(), share)
            mixed = learner.forward(query.own(mixup(weak, kept, share)))
            learner.accumulate(self.settings.mix_weight * F.cross_entropy(mixed, targets))
        updated = learner.update()
        if updated:
            buffer.keep(images, probabilities)
        return updated


class Buffer(nn.Module):
    """The most confident samples of each class so far."""

    def __init__(self, classes: int, places: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.images: Tensor
        self.confidence: Tensor
        self.register_buffer("images", torch.zeros(classes, places, *shape))
        self.register_buffer("confidence", torch.zeros(classes, places))

    @property
    def filled(self) -> Tensor:
        """Which places are taken."""
        return self.confidence > 0

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw samples and their pseudo-labels, with replacement."""
        classes, places = self.filled.nonzero(as_tuple=True)
        chosen = torch.randint(len(classes), (size,), generator=generator)
        return self.images[classes[chosen], places[chosen]], classes[chosen]

    def keep(self, images: Tensor, probabilities: Tensor) -> None:
        """Replace the least confident sample of a class by a more confident one."""
        for image, confidence, label in zip(images, *probabilities.max(dim=1), strict=True):
            place = int(self.confidence[label].argmin())
            if confidence > self.confidence[label, place]:
                self.images[label, place] = image
                self.confidence[label, place] = confidence
