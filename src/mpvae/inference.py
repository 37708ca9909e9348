"""What fitted networks say: probabilities of labels, and how labels hang together."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.quasirandom import SobolEngine

from mpvae import probit
from mpvae.errors import MPVAEError
from mpvae.features import Matrix
from mpvae.networks import MPVAE
from mpvae.rows import rows_tensor
from mpvae.threads import threads_for

_ROWS, _CELLS = 4096, 2**25  # rows and entries per pass: bound memory, change no result
SD_BOUNDS = 1e-6, 1e3
"""Of a code: rows far outside the training data ask for exp(1000)."""
_SEED = 20200711  # of the quasi-random codes: part of the definition of a prediction


def marginals(
    networks: Sequence[MPVAE],
    X: Matrix,
    z_draws: int,
    on_rows: Callable[[int], None] = lambda n: None,
) -> NDArray[np.float64]:
    """Probability of each label of each row: closed form given z, averaged over members.

    Parameters
    ----------
    networks : sequence of MPVAE
        The members.
    X : matrix of shape (n, D)
        Features as the networks see them.
    z_draws : int
        Codes z to average, the same quasi-random ones for every row; 0 uses the mean of
        p(z | x). Either way equal rows get equal answers.
    on_rows : callable
        Told the number of rows done, after each piece.

    Returns
    -------
    ndarray of shape (n, L)
    """
    n, L = X.shape[0], networks[0].B.shape[0]
    total = np.zeros((n, L))
    rows = _rows_at_once(max(X.shape[1], L))
    n_weights = sum(p.numel() for p in networks[0].parameters())
    with torch.inference_mode(), threads_for(2 * n_weights * min(n, rows)):
        for start in range(0, n, rows):
            piece = slice(start, min(n, start + rows))
            for network in networks:
                x = rows_tensor(X, piece, network.B)
                p = _mean_over_z(network, x, z_draws)
                total[piece] += p.double().cpu().numpy()
            on_rows(piece.stop - start)
    return total / len(networks)


def refuse_not_a_number(answers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Answers as they are; weights that lead to none must not go unnoticed."""
    wrong = int(np.isnan(answers).sum())
    if wrong:
        raise MPVAEError(
            f"{wrong} of the model's {answers.size} answers are not finite; its weights are "
            "damaged, train it again"
        )
    return answers


def code_loadings(network: MPVAE, X: Matrix, *, n_rows: int = 512, n_draws: int = 64) -> Tensor:
    r"""Factor loadings ``C`` that stand for what the latent code adds to the label covariance.

    Given a row, the utilities vary with u through ``B u`` and with z through ``m(x, z)``:
    :math:`\mathrm{Cov}(w | x) = I + B B^\top + \mathrm{Cov}_z\, m(x, z)`. Averaged over rows,
    the last part has at most ``latent_dim`` notable directions; ``C C^T`` is its best
    approximation of that rank.

    Returns
    -------
    Tensor of shape (L, latent_dim)
    """
    n_labels = network.B.shape[0]
    n_rows = min(n_rows, X.shape[0], _rows_at_once(max(X.shape[1], n_draws * n_labels)))
    rows = np.linspace(0, X.shape[0] - 1, n_rows).astype(np.int64)
    with torch.inference_mode():
        x = rows_tensor(X, rows, network.B)
        p_z_x = network.prior(x)
        eps = normal_points(n_draws, p_z_x.mean.shape[1]).to(network.B)
        given = network.from_features(x)
        codes = (p_z_x.mean + p_z_x.stddev * e for e in eps)
        m = torch.stack([network.decode_codes(given, z) for z in codes])
        deviation = (m - m.mean(0)).flatten(0, 1) / (
            len(rows) * (n_draws - 1)
        ) ** 0.5  # (S N, L)
        return _largest_directions(deviation, p_z_x.mean.shape[1])


def feature_loadings(network: MPVAE, X: Matrix, *, n_rows: int = 2048) -> Tensor:
    """Factor loadings that stand for how the features move the utilities from row to row.

    Their product with their transpose is, up to 64 directions, the covariance over rows of
    the mean utilities m(x, E z).

    Returns
    -------
    Tensor of shape (L, min(L, 64))
    """
    rows = np.linspace(0, X.shape[0] - 1, min(n_rows, X.shape[0])).astype(np.int64)
    with torch.inference_mode():
        means = []
        at_once = _rows_at_once(max(X.shape[1], network.B.shape[0]))
        for some in np.array_split(rows, -(-len(rows) // at_once)):
            x = rows_tensor(X, some, network.B)
            means.append(network.decode(x, network.prior(x).mean))
        m = torch.cat(means)
        return _largest_directions((m - m.mean(0)) / max(len(m) - 1, 1) ** 0.5, 64)


def latent_effects(network: MPVAE, X: Matrix, *, n_rows: int = 200) -> NDArray[np.float64]:
    """What moving one dimension of the code does to the probability of each label.

    From one standard deviation of p(z | x) below its mean to one above, the other dimensions
    at their means; on average over rows, at most ``n_rows``, spread over X.

    Returns
    -------
    ndarray of shape (latent_dim, L)
    """
    rows = np.linspace(0, X.shape[0] - 1, min(n_rows, X.shape[0])).astype(np.int64)
    with torch.inference_mode():
        x = rows_tensor(X, rows, network.B)
        (mean, sd), given = code_given(network, x), network.from_features(x)
        effects = []
        for j in range(network.latent_dim):
            step = torch.zeros_like(mean)
            step[:, j] = sd[:, j]
            up, down = (
                probit.marginal_prob(network.decode_codes(given, mean + side), network.B)
                for side in (step, -step)
            )
            effects.append((up - down).double().mean(0))
        return refuse_not_a_number(torch.stack(effects).cpu().numpy())


def _largest_directions(deviation: Tensor, rank: int) -> Tensor:
    """Loadings (L, at most rank) whose product is nearest to ``deviation.T @ deviation``."""
    n, L = deviation.shape
    if n < L:  # the same directions, from the smaller matrix of inner products
        weights = torch.linalg.eigh(deviation @ deviation.mT)[1][:, -min(rank, n) :]
        loadings: Tensor = deviation.mT @ weights
        return loadings
    variance, directions = torch.linalg.eigh(deviation.mT @ deviation)
    rank = min(rank, len(variance))
    loadings = directions[:, -rank:] * variance[-rank:].clamp(min=0).sqrt()
    return loadings


def _rows_at_once(width: int) -> int:
    return max(1, min(_ROWS, _CELLS // width))


def code_given(network: MPVAE, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the code given the features, (N, d) both."""
    p_z_x = network.prior(x)
    return p_z_x.mean, p_z_x.stddev.clamp(*SD_BOUNDS)


def _mean_over_z(network: MPVAE, x: Tensor, z_draws: int) -> Tensor:
    mean, sd = code_given(network, x)
    if z_draws == 0:
        return probit.marginal_prob(network.decode(x, mean), network.B)
    total = torch.zeros_like(x[:, :1])
    given = network.from_features(x)
    for eps in normal_points(z_draws, mean.shape[1]).to(x):
        m = network.decode_codes(given, mean + sd * eps)
        total = total + probit.marginal_prob(m, network.B)
    return total / z_draws


def normal_points(n: int, dimension: int) -> Tensor:
    """Quasi-random standard normal points, always the same, shape (n, dimension)."""
    engine = SobolEngine(dimension, scramble=True, seed=_SEED)  # type: ignore[no-untyped-call]
    uniform: Tensor = engine.draw(n, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    points: Tensor = torch.special.ndtri(uniform)
    return points
