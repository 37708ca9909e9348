"""SLEEC: nearest neighbours in a small space that keeps who is near by labels."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor, nn

from mpvae.adam import Adam, Group
from mpvae.baselines import sleec_maths as maths
from mpvae.baselines.base import Baseline, is_integer, require
from mpvae.baselines.neural import LoopOptions, check_network_options, predict_in_pieces
from mpvae.features import Matrix
from mpvae.loop import device_named, fit_network, seeded
from mpvae.networks import mlp
from mpvae.rows import Rows

_SETTLED = 1e-3  # SVP stops when a step lowers its objective by less than this share


class SLEEC(Baseline):
    r"""Sparse local embeddings: kNN where rows with like labels are near.

    1. Rows are clustered by their features (k-means, about ``cluster_size`` rows each).
    2. In each cluster, points Z keep the cosines of the label vectors, but only between
       neighbours by labels (the set Omega); found by singular value projection.
    3. A regression maps features to Z.
    4. A new row goes to the nearest cluster, is mapped, and takes the mean of the labels of
       its nearest training rows there, which are mapped as well, weighted by nearness.
    5. Several such learners, each from other random clusters, are averaged.

    Dense features are standardised; sparse ones are divided by the column's largest value,
    and rows brought to one length, as is usual for text.

    Parameters
    ----------
    n_components : int
        Dimensions r of the embedding, at most (a cluster of n rows has at most n).
    n_neighbors : int
        Neighbours that vote in a prediction.
    n_neighbors_train : int
        Neighbours by labels whose cosines the embedding keeps.
    regressor : {"linear", "neural"}
        Ridge with a sparse outcome, as in the SLEEC paper; or a ReLU network, as the MPVAE
        paper used, trained on the squared error.
    n_learners : int
        Size of the ensemble.
    cluster_size : int
        Rows per cluster, on average; fewer than 1.5 times that are one cluster.
    svp_steps : int
        Steps of the singular value projection, at most.
    l1, l2 : float
        Penalties of the linear regressor: on the mapped points, and on the coefficients (in
        units of the mean squared length of a row of X).
    hidden, dropout, lr, weight_decay, batch_size, max_epochs, device
        Of the neural regressor, as in `mpvae.baselines.neural.NeuralBaseline`.
    random_state : int, RandomState or None
        For clusters, ties between neighbours, and networks.

    Notes
    -----
    Per learner, with c = ``cluster_size``, k = ``n_neighbors_train`` and s the labels per row:
    k-means O(n^2 D / c); finding Omega O(ncs), in bounded memory; each step of the
    projection O(nkr + nr^2); ridge O(n D min(c, D)) once per cluster; a prediction O(Dr + cr)
    per row. L enters through s, and the (n, L) labels and answer. No n x n array is made.

    References
    ----------
    Bhatia, Jain, Kar, Varma, Jain (2015). Sparse local embeddings for extreme multi-label
    classification. NeurIPS 28.
    """

    def __init__(
        self,
        n_components: int = 100,
        n_neighbors: int = 20,
        n_neighbors_train: int = 30,
        regressor: Literal["linear", "neural"] = "linear",
        n_learners: int = 3,
        cluster_size: int = 6000,
        svp_steps: int = 25,
        l1: float = 0.0,
        l2: float = 3.0,
        hidden: tuple[int, ...] = (512, 256),
        dropout: float = 0.0,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        batch_size: int = 128,
        max_epochs: int = 10,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.n_neighbors_train = n_neighbors_train
        self.regressor = regressor
        self.n_learners = n_learners
        self.cluster_size = cluster_size
        self.svp_steps = svp_steps
        self.l1 = l1
        self.l2 = l2
        self.hidden = hidden
        self.dropout = dropout
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.device = device
        self.random_state = random_state

    def _check(self) -> None:
        for name in (
            "n_components",
            "n_neighbors",
            "n_neighbors_train",
            "n_learners",
            "cluster_size",
            "svp_steps",
        ):
            value = getattr(self, name)
            require(name, value, is_integer(value) and value >= 1, "an integer >= 1")
        known = ("linear", "neural")
        require("regressor", self.regressor, self.regressor in known, "'linear' or 'neural'")
        require("l1", self.l1, self.l1 >= 0, "at least 0")
        require("l2", self.l2, self.l2 > 0, "above 0")
        check_network_options(self)

    def _seen(self, Z: Matrix, *, reset: bool) -> Matrix:
        length = self.features_.row_length
        if length is None:
            return Z
        # Mean square of an entry 1, as in standardised columns
        scaled = (Z * (np.sqrt(Z.shape[1]) / length)).astype(np.float32)
        if sp.issparse(scaled):  # k-means takes no longer indices
            scaled.indices = scaled.indices.astype(np.int32)
            scaled.indptr = scaled.indptr.astype(np.int32)
        return scaled

    def _learn(self, X: Matrix, Y: NDArray[np.float64], seed: int) -> None:
        self.training_labels_ = sp.csr_array(Y)
        seeds = np.random.SeedSequence(seed).spawn(self.n_learners)
        self.learners_ = [self._learner(X, Y, np.random.default_rng(s)) for s in seeds]

    def _probabilities(self, X: Matrix) -> NDArray[np.float64]:
        Y, k = self.training_labels_, self.n_neighbors
        total = np.zeros((X.shape[0], Y.shape[1]))
        for learner in self.learners_:
            total += learner.probabilities(X, Y, k)
        return total / len(self.learners_)

    def _learner(
        self, X: Matrix, Y: NDArray[np.float64], rng: np.random.Generator
    ) -> "Learner":
        centres, of_row = maths.cluster_rows(X, self.cluster_size, rng)
        embeddings = []
        for c in range(len(centres)):
            rows = np.flatnonzero(of_row == c)
            G = maths.label_cosines(Y[rows], self.n_neighbors_train, rng)
            Z = maths.svp(G, self.n_components, max_iter=self.svp_steps, tol=_SETTLED, rng=rng)
            mapping = self._regression(X[rows], Z, rng)
            embeddings.append(Embedding(rows, mapping, mapping(X[rows])))
        return Learner(centres, embeddings)

    def _regression(
        self, X: Matrix, Z: NDArray[np.float32], rng: np.random.Generator
    ) -> "Mapping":
        if self.regressor == "neural":
            return self._train(X, Z, int(rng.integers(2**31 - 1)))
        mean = Z.mean(axis=0, dtype=np.float64)
        square_length = float((X.multiply(X) if sp.issparse(X) else X * X).sum() / len(Z))
        l2 = self.l2 * (square_length or 1.0)  # features may be constant
        return LinearMapping(maths.sparse_ridge(X, Z - mean, l1=self.l1, l2=l2), mean)

    def _train(self, X: Matrix, Z: NDArray[np.float32], seed: int) -> "NeuralMapping":
        options = LoopOptions(
            self.lr, "cosine", 1.0, 0, self.batch_size, self.max_epochs, None, "log_loss"
        )
        with seeded(seed):
            network = EmbeddingNetwork(
                mlp(X.shape[1], tuple(self.hidden), Z.shape[1], self.dropout)
            ).to(device_named(self.device))
            optimizer = Adam([Group(list(network.parameters()), self.weight_decay)])
            course = fit_network(
                network,
                Rows(X, Z, np.ones(len(Z))),
                None,
                options,
                optimizer=optimizer,
                loss=network.loss,
                probabilities=lambda X: predict_in_pieces(network, X),
                metric="micro_f1",
            )
        if course.interrupted:
            raise KeyboardInterrupt("fit was interrupted")
        return NeuralMapping(network.double())  # equal rows, equal answers, in any batch


class Mapping(Protocol):
    """What takes features (n, D) to points of the embedding (n, r)."""

    def __call__(self, X: Matrix) -> NDArray[np.float64]: ...  # noqa: D102


@dataclass(frozen=True, slots=True, eq=False)
class LinearMapping:
    """Features times V (D, r), plus the mean (r,) of the points."""

    V: NDArray[np.float64]
    mean: NDArray[np.float64]

    def __call__(self, X: Matrix) -> NDArray[np.float64]:  # noqa: D102
        return np.asarray(X @ self.V) + self.mean


@dataclass(frozen=True, slots=True, eq=False)
class NeuralMapping:
    """What a trained network makes of X."""

    network: "EmbeddingNetwork"

    def __call__(self, X: Matrix) -> NDArray[np.float64]:  # noqa: D102
        return predict_in_pieces(self.network, X)


class SquaredError(NamedTuple):
    """Mean squared distance between mapped and true points."""

    total: Tensor


class EmbeddingNetwork(nn.Module):
    """Layers from features to the embedding, with what the loop asks of a network."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, x: Tensor, z: Tensor, weight: Tensor) -> SquaredError:
        """Mean squared distance of a batch from its points ``z`` (N, r)."""
        distance = (self.layers(x) - z).square().sum(-1)  # (N,)
        return SquaredError((weight * distance).sum() / weight.sum())

    def probabilities(self, x: Tensor) -> Tensor:
        """Points (N, r), not probabilities: the name is what `predict_in_pieces` calls."""
        points: Tensor = self.layers(x)
        return points


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """One cluster: its training rows, the mapping, and where it takes them, (rows, r)."""

    rows: NDArray[np.int64]
    mapping: Mapping
    reference: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Learner:
    """One clustering and the embedding of each cluster."""

    centres: NDArray[np.float64]
    embeddings: list[Embedding]

    def probabilities(self, X: Matrix, Y: sp.csr_array, k: int) -> NDArray[np.float64]:
        """Vote of the k neighbours in each row's cluster; Y (n, L) are the training labels."""
        nearest = maths.nearest_centre(X, self.centres)
        P = np.zeros((X.shape[0], Y.shape[1]))
        for c in np.unique(nearest):
            of_cluster = np.flatnonzero(nearest == c)
            local = self.embeddings[c]
            points = local.mapping(X[of_cluster])
            P[of_cluster] = maths.neighbour_vote(points, local.reference, Y[local.rows], k)
        return P
