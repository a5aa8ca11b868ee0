"""Prior correction: the classes that a query has are more probable for each of its samples.

A classifier answers for the mix of classes that it has met. In a query of few classes, an unsure sample is most likely
one of those. How many of each class there are follows from the predictions themselves, by expectation and maximisation
(Saerens, Latinne and Decaestecker, *Adjusting the outputs of a classifier to new a priori probabilities*, Neural
Computation 2002). Some samples of the usual mix are added, so that a short query says little.
"""

from torch import Tensor

ROUNDS = 20
USUAL_SAMPLES = 8  # of the usual mix, added to those of a query
SMALLEST = 1e-30  # sum of a row


def fit_classes(probabilities: Tensor, usual: Tensor) -> Tensor:
    """Predictions for the mix of classes that a query seems to have, instead of the usual mix.

    >>> import torch
    >>> sure, unsure = [0.98, 0.01, 0.01], [0.4, 0.45, 0.15]
    >>> fit_classes(torch.tensor([sure] * 9 + [unsure]), torch.full((3,), 1 / 3))[9].argmax()
    tensor(0)
    """
    count, mix, fitted = len(probabilities), usual, probabilities
    for _ in range(ROUNDS):
        fitted = probabilities * (mix / usual)
        fitted = fitted / fitted.sum(dim=1, keepdim=True).clamp(min=SMALLEST)
        mix = (fitted.sum(dim=0) + USUAL_SAMPLES * usual) / (count + USUAL_SAMPLES)
    return fitted
