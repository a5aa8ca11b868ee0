"""Numbers that an attacker derives from a model's output for one sample, given as log-probabilities of the classes."""

import numpy as np


def loss(log_probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Cross-entropy of the true label."""
    return -_of_label(log_probabilities, labels)


def entropy(log_probabilities: np.ndarray) -> np.ndarray:
    """Entropy of the output. Needs no label."""
    return -np.asarray((np.exp(log_probabilities) * log_probabilities).sum(axis=-1))


def confidence(log_probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Logit of the true label's probability, log p / (1 − p). Uses the sum of the others for 1 − p: exact near 1."""
    others = np.arange(log_probabilities.shape[-1]) != labels[:, None]
    rest: np.ndarray = np.logaddexp.reduce(np.where(others, log_probabilities, -np.inf), axis=-1)
    return np.asarray(_of_label(log_probabilities, labels) - rest)


def _of_label(log_probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return log_probabilities[..., np.arange(len(labels)), labels]
