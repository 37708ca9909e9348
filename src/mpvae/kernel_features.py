r"""Kernel features: columns beside x in which a linear layer is a kernel machine.

With landmarks :math:`x_1 \dots x_m` among the training rows and :math:`K` the kernel among
them, the features of a row are :math:`K^{-1/2} (k(x, x_1), \dots, k(x, x_m))` (Nystroem): their
inner products approximate the kernel. Networks on tables gain from them what kernel machines
have over networks, smooth interpolation between rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from mpvae.features import Matrix, dense, with_short_positions
from mpvae.similarity import Kernel

_LEAST = 1e-6  # eigenvalue of the kernel, as a share of the largest, that still counts


@dataclass(frozen=True, slots=True, eq=False)
class KernelFeatures:
    """Landmarks, and how kernel values at them become columns of about unit spread."""

    landmarks: NDArray[np.float32]  # (m, D)
    mix: NDArray[np.float32]  # (m, m)
    shift: NDArray[np.float32]  # (m,)

    @property
    def n_outputs(self) -> int:
        """Number of columns."""
        return len(self.landmarks)

    @property
    def kernel(self) -> Kernel:
        """The kernel whose values at the landmarks are mixed."""
        return _kernel(self.landmarks)

    def apply(self, X: Matrix) -> NDArray[np.float32]:
        """Columns of shape (n, m) for features as the networks see them."""
        X = with_short_positions(X)
        found = np.empty((X.shape[0], self.n_outputs), np.float32)
        for piece, K in self.kernel.pieces(X, self.landmarks):
            found[piece] = K @ self.mix - self.shift
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything by name, for a file."""
        return {name: getattr(self, name) for name in ("landmarks", "mix", "shift")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], n_features: int) -> Self:
        """From what `arrays` gave; ValueError where it does not fit the features."""
        landmarks, mix, shift = (arrays[name] for name in ("landmarks", "mix", "shift"))
        m = len(landmarks)
        shapes = (landmarks.shape, mix.shape, shift.shape)
        if m == 0 or shapes != ((m, n_features), (m, m), (m,)):
            raise ValueError("kernel features do not fit the features")
        if not all(a.dtype == np.float32 and np.isfinite(a).all() for a in arrays.values()):
            raise ValueError("kernel features are not finite numbers")
        return cls(landmarks, mix, shift)


def fit_kernel_features(
    X: Matrix, weight: NDArray[np.float64], n_features: int, seed: int
) -> KernelFeatures:
    """Kernel features at a sample of ``n_features`` rows, or at all where there are fewer.

    Parameters
    ----------
    X : matrix of shape (n, D)
        Features on comparable scales.
    weight : ndarray of shape (n,)
        How much a row counts for centre and scale.
    n_features : int
        Landmarks, hence columns.
    seed : int
        Of the sample.
    """
    X = with_short_positions(X)
    chosen = np.sort(np.random.default_rng(seed).permutation(X.shape[0])[:n_features])
    landmarks = np.asarray(dense(X[chosen]), np.float32)
    kernel = _kernel(landmarks)
    value, V = scipy.linalg.eigh(kernel.between(landmarks, landmarks))
    value = np.maximum(value, _LEAST * value[-1])
    root = V / np.sqrt(value) @ V.T
    share = weight / weight.sum()
    mean, square = np.zeros(len(landmarks)), np.zeros(len(landmarks))
    for piece, K in kernel.pieces(X, landmarks):
        columns = K @ root
        mean += share[piece] @ columns
        square += share[piece] @ columns**2
    # One scale for all: columns of their own would lift those that hold rounding alone.
    variance = float(np.mean(square - mean**2))
    spread = np.sqrt(variance) if variance > 1e-12 else 1.0  # or all rows are equal
    return KernelFeatures(
        landmarks, (root / spread).astype(np.float32), (mean / spread).astype(np.float32)
    )


def _kernel(landmarks: NDArray[np.float32]) -> Kernel:
    """Standardised columns make rows some 1.1 D apart: a kernel of about exp(-1.1) there."""
    return Kernel(laplace=1.0 / int(landmarks.shape[1]))
