"""Prior correction: what a query's classes say about its unsure samples."""

import pytest
import torch
from torch import Generator

from crodobo.guard.class_prior import USUAL_SAMPLES, fit_classes

USUAL = torch.tensor([0.5, 0.3, 0.2])


def posteriors(mix: torch.Tensor, count: int, noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact posteriors of a Gaussian classifier for the usual mix, of samples of another mix; and their classes."""
    generator = Generator().manual_seed(seed)
    labels = torch.multinomial(mix, count, replacement=True, generator=generator)
    centres = torch.tensor([0.0, 1.0, 2.0])
    seen = centres[labels] + noise * torch.randn(count, generator=generator)
    likelihood = torch.exp(-((seen[:, None] - centres) ** 2) / (2 * noise**2))
    joint = likelihood * USUAL
    return joint / joint.sum(dim=1, keepdim=True), labels


def test_it_finds_the_bayes_answer_for_the_true_mix() -> None:
    """With many samples the fitted answer is that of a classifier that knows the mix."""
    mix = torch.tensor([0.05, 0.05, 0.9])
    usual, _ = posteriors(mix, 4000, noise=0.4)
    exact = usual * (mix / USUAL)
    exact = exact / exact.sum(dim=1, keepdim=True)
    assert torch.allclose(fit_classes(usual, USUAL), exact, atol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_it_makes_more_answers_right_in_a_burst_and_costs_little_in_a_usual_query(seed: int) -> None:
    for mix, gain in ((torch.tensor([0.0, 0.0, 1.0]), 0.1), (USUAL, -0.03)):
        usual, labels = posteriors(mix, 256, noise=0.8, seed=seed)
        before = (usual.argmax(dim=1) == labels).float().mean()
        after = (fit_classes(usual, USUAL).argmax(dim=1) == labels).float().mean()
        assert after >= before + gain


def test_one_sample_hardly_moves() -> None:
    """The samples of the usual mix outweigh it."""
    one = torch.tensor([[0.45, 0.35, 0.2]])
    assert (fit_classes(one, USUAL) - one).abs().max() < 1 / USUAL_SAMPLES


def test_rows_stay_distributions_even_if_they_are_certain() -> None:
    certain = torch.eye(3).repeat(5, 1)
    fitted = fit_classes(certain, USUAL)
    assert torch.allclose(fitted.sum(dim=1), torch.ones(15))
    assert torch.equal(fitted.argmax(dim=1), certain.argmax(dim=1))
