"""Adam against torch's own class, and what it is there for."""

import subprocess
import sys

import pytest
import torch

from mpvae.adam import Adam, Group


def parameters(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3, 5), (5,), (2, 2))
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]


def test_steps_are_those_of_torch():
    ours, theirs = parameters(0), parameters(0)
    optimizer = Adam([Group(ours[:2], weight_decay=0.1), Group(ours[2:], factor=10.0)])
    reference = torch.optim.Adam(
        [{"params": theirs[:2], "weight_decay": 0.1}, {"params": theirs[2:], "lr": 0.1}],
        lr=0.01,
    )
    for _ in range(20):
        for params in (ours, theirs):
            sum((p**4).sum() for p in params).backward()
        optimizer.step(0.01)
        reference.step()
        optimizer.zero_grad()
        reference.zero_grad()
    for mine, its in zip(ours, theirs, strict=True):  # other order of the same few operations
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-12)


def test_a_parameter_without_gradient_stays():
    params = parameters(1)
    before = [p.detach().clone() for p in params]
    params[0].sum().backward()
    Adam([Group(params)]).step(0.1)
    assert not torch.equal(params[0], before[0])
    assert torch.equal(params[1], before[1])
    assert torch.equal(params[2], before[2])


def test_gradients_are_forgotten():
    params = parameters(2)
    params[0].sum().backward()
    Adam([Group(params)]).zero_grad()
    assert all(p.grad is None for p in params)


@pytest.mark.parametrize("base", ["'auto'", "None"])
def test_a_fit_does_not_load_the_compiler(base):
    code = (
        "import sys, numpy as np; from mpvae import MPVAEClassifier;"
        "rng = np.random.default_rng(0); X = rng.normal(size=(60, 4)); Y = X[:, :3] > 0;"
        f"MPVAEClassifier(max_epochs=2, n_members=1, base={base}).fit(X, Y).predict(X);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
