"""Kernels between rows against a double loop over them."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from mpvae import compiled, similarity
from mpvae.similarity import Kernel, absolute_distances, squared_distances

RNG = np.random.default_rng(0)
A = (RNG.normal(size=(7, 5)) * (RNG.random((7, 5)) < 0.6)).astype(np.float32)
B = (RNG.normal(size=(4, 5)) * (RNG.random((4, 5)) < 0.6)).astype(np.float32)
KINDS = [np.asarray, sp.csr_array]


def looped(A, B, kernel):
    """Both kernels and their mean, number by number."""
    values = np.empty((len(A), len(B)))
    for i, a in enumerate(A.tolist()):
        for j, b in enumerate(B.tolist()):
            apart = [abs(p - q) for p, q in zip(a, b, strict=True)]
            laplace = math.exp(-kernel.laplace * sum(apart))
            gauss = math.exp(-kernel.gauss * sum(d * d for d in apart))
            both = [v for v, g in ((laplace, kernel.laplace), (gauss, kernel.gauss)) if g]
            values[i, j] = sum(both) / len(both)
    return values


@pytest.mark.parametrize("rate", [0.01, 0.5, 20.0])
@pytest.mark.parametrize("kind_a", KINDS)
@pytest.mark.parametrize("kind_b", KINDS)
@pytest.mark.parametrize("parts", [(1, 0), (0, 1), (1, 0.7)])
def test_it_is_the_kernel_of_all_pairs(kind_a, kind_b, parts, rate):
    kernel = Kernel(*(rate * part for part in parts))
    # |a|^2 + |b|^2 - 2 ab: some 20 roundings of numbers up to 20, times the rate, in an
    # exponent; where the rate is large the kernel itself is small. Squares below 1e-12 of the
    # lengths are 0.
    most = 20 * 20 * 2.3e-16 * max(1, rate)
    found = kernel.between(kind_a(A), kind_b(B))
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, looped(A, B, kernel), 0, most)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distances", [absolute_distances, squared_distances])
def test_a_row_is_at_distance_zero_from_itself_and_none_below(kind, distances):
    far = (A + 1e4).astype(np.float32)  # squares of 5e8 cancel
    D = distances(kind(far), kind(far))
    assert (D >= 0).all()
    assert np.diag(D).max() == 0
    assert (Kernel(laplace=1.0, gauss=1.0).between(kind(far), kind(far)) <= 1).all()


@pytest.mark.parametrize("shape", [(0, 3, 5), (1, 1, 1), (3, 0, 2), (5, 70, 9), (6, 128, 40)])
def test_compiled_distances_are_those_of_scipy(monkeypatch, shape):
    """To the last bit: both add the columns one after the other."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(shape[0], shape[2])), rng.normal(size=(shape[1], shape[2]))
    a.flags.writeable = False
    fast = absolute_distances(a, b)
    monkeypatch.setattr(compiled, "available", False)
    plain = absolute_distances(a, b)
    assert fast.shape == plain.shape == shape[:2]
    assert (fast == plain).all()


def test_numbers_of_few_bits_are_squared_in_many():
    """1e30 squared is more than float32 holds."""
    big = sp.csr_array(np.array([[1e30, 0], [0, 1e30]], np.float32))
    D = squared_distances(big, big)
    assert D[0, 1] == pytest.approx(2e60, rel=1e-6)
    assert D.diagonal().tolist() == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [1, 4, 9, 10**6])
def test_pieces_together_are_all_rows(monkeypatch, kind, cells):
    monkeypatch.setattr(similarity, "_CELLS", cells)
    kernel = Kernel(laplace=0.5)
    found = np.full((7, 4), np.nan)
    for piece, values in kernel.pieces(kind(A), B):
        assert values.size <= max(cells, 4)  # one row is the least
        assert np.isnan(found[piece]).all()
        found[piece] = values
    np.testing.assert_allclose(found, looped(A, B, kernel), 0, 1e-13)
    assert list(kernel.pieces(kind(A)[:0], B)) == []
