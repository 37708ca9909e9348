"""Every method of the comparison: how it is built, and which settings are searched.

A method's ``grid`` is tried on validation rows, its first entry first; the paper chose
settings per data set in the same way. Peers are what users would pick instead, with sensible
settings. `fit` trains on the training rows alone; validation rows serve early stopping (where
a method has it) and thresholds.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.svm import SVC

from harness.datasets import Part, Parts, join
from mpvae import MPVAEClassifier
from mpvae.baselines import C2AE, DMVP, MLARAM, MLKNN, SLEEC, LaMP
from mpvae.data import stratified_folds
from mpvae.observed import prevalence

Settings = Mapping[str, Any]
NO_SETTINGS: tuple[Settings, ...] = ({},)
LARGE = 50_000
"""Rows beyond which methods get fewer passes over them, so that a cell stays in bounds."""


@dataclass(frozen=True)
class Method:
    """One row of the tables."""

    title: str
    kind: str  # "ours", "paper" (a rival of the paper) or "peer"
    build: Callable[[Settings, int, Part], Any]  # settings, seed, training rows -> estimator
    grid: tuple[Settings, ...] = NO_SETTINGS
    published: str = ""  # column of the paper's tables
    random: bool = True  # False: equal rows, equal result, so one run is all
    own_thresholds: bool = False  # holds rows out by itself and chooses thresholds on them


def fit(method: Method, settings: Settings, seed: int, parts: Parts) -> Any:
    """Estimator fitted on what the method may see: never on test rows."""
    learn = join(parts.train, parts.validation) if method.own_thresholds else parts.train
    model = method.build(settings, seed, learn)
    takes_validation = "X_val" in inspect.signature(model.fit).parameters
    takes_validation &= settings.get("validation_fraction") != 0  # trained to the last epoch
    if takes_validation and not method.own_thresholds:
        return model.fit(learn.X, learn.Y, parts.validation.X, parts.validation.Y)
    return model.fit(learn.X, learn.Y)


def probabilities(model: Any, X: Any) -> np.ndarray:
    """Probability of each label (n, L), whatever shape scikit-learn gives it."""
    P = model.predict_proba(X)
    if isinstance(P, list):  # one (n, 2) per label; a label never seen has one column
        classes = model.classes_
        return np.column_stack(
            [
                p[:, list(c).index(1)] if 1 in c else np.zeros(len(p))
                for p, c in zip(P, classes, strict=True)
            ]
        )
    return np.asarray(P)


def plain(X: Any) -> Any:
    """Features as scikit-learn's own estimators take them."""
    if isinstance(X, pd.DataFrame):
        return X.to_numpy(np.float32)
    X = sp.csr_matrix(X)
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)  # for trees
    return X


class Plain:
    """scikit-learn's estimator on plain arrays, with a scaler in front."""

    def __init__(self, estimator: Any, *, scaled: bool = False) -> None:
        self.estimator, self.scaled = estimator, scaled

    def fit(self, X: Any, Y: np.ndarray) -> "Plain":
        X = plain(X)
        if self.scaled:
            scaler = MaxAbsScaler() if sp.issparse(X) else StandardScaler()
            self.estimator = make_pipeline(scaler, self.estimator)
        self.estimator.fit(X, Y)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.clip(probabilities(self.estimator, plain(X)), 0, 1)


class HalfVote(Plain):
    """A forest whose trees are joined by half a vote for each label's frequency.

    Where all trees agree a forest is certain, and one row it is wrong about would ruin its
    log-loss: (T p + 1/2 prior) / (T + 1/2) of T trees never is.
    """

    def fit(self, X: Any, Y: np.ndarray) -> "HalfVote":
        self.prior = prevalence(Y, np.ones(len(Y)))  # (L,)
        super().fit(X, Y)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        T = self.estimator.n_estimators
        return (T * super().predict_proba(X) + 0.5 * self.prior) / (T + 0.5)


class ConstantOr(ClassifierMixin, BaseEstimator):
    """A binary classifier that answers with the share of ones where a label has one class."""

    def __init__(self, estimator: Any = None) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: np.ndarray) -> "ConstantOr":
        self.classes_ = np.array([0, 1])
        self.share_ = float(np.mean(y))
        self.fitted_ = clone(self.estimator).fit(X, y) if 0 < self.share_ < 1 else None
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        if self.fitted_ is None:
            return np.tile([1 - self.share_, self.share_], (X.shape[0], 1))
        return self.fitted_.predict_proba(X)

    def predict(self, X: Any) -> np.ndarray:
        return (self.predict_proba(X)[:, 1] > 0.5).astype(np.int64)


class KernelMachine:
    """RBF support vector machines one-vs-rest, a sigmoid fitted to out-of-fold scores.

    The kernel is computed once for all labels. Where rows x labels is beyond ``MOST`` or rows
    beyond 10,000, a Nystroem map of 500 landmarks and logistic regression take its place:
    exact machines would need hours.
    """

    MOST = 400_000

    def __init__(self, C: float, seed: int) -> None:
        self.C, self.seed = C, seed

    def fit(self, X: Any, Y: np.ndarray) -> "KernelMachine":
        X = plain(X)
        self.scaler = (MaxAbsScaler() if sp.issparse(X) else StandardScaler()).fit(X)
        X = self.scaler.transform(X)
        n, L = Y.shape
        spread = X.multiply(X).mean() - X.mean() ** 2 if sp.issparse(X) else X.var()
        self.gamma = 1 / (X.shape[1] * max(spread, 1e-12))  # scikit-learn's "scale"
        self.machines: list[Any] = []
        if n * L > self.MOST or n > 10_000:
            self.map = Nystroem(
                gamma=self.gamma, n_components=min(500, n), random_state=self.seed
            )
            Z = self.map.fit_transform(X)
            for y in Y.T:
                model = ConstantOr(LogisticRegression(C=self.C, max_iter=50))
                self.machines.append(model.fit(Z, y))
            return self
        self.map, self.X = None, X
        K = rbf_kernel(X, gamma=self.gamma)
        folds = stratified_folds(Y, 3, seed=self.seed)
        for y in Y.T:
            self.machines.append(self._machine(K, y, folds))
        return self

    def _machine(self, K: np.ndarray, y: np.ndarray, folds: np.ndarray) -> Any:
        trainable = all(0 < y[folds != k].sum() < (folds != k).sum() for k in range(3))
        if not trainable:
            return float(y.mean())
        scores = np.empty(len(y))
        for k in range(3):
            a, b = folds != k, folds == k
            part = SVC(C=self.C, kernel="precomputed").fit(K[np.ix_(a, a)], y[a])
            scores[b] = part.decision_function(K[np.ix_(b, a)])
        sigmoid = LogisticRegression(C=1e6).fit(scores[:, None], y)
        return SVC(C=self.C, kernel="precomputed").fit(K, y), sigmoid

    def predict_proba(self, X: Any) -> np.ndarray:
        X = self.scaler.transform(plain(X))
        if self.map is not None:
            Z = self.map.transform(X)
            return np.column_stack([m.predict_proba(Z)[:, 1] for m in self.machines])
        K = rbf_kernel(X, self.X, gamma=self.gamma)
        columns = []
        for machine in self.machines:
            if isinstance(machine, float):
                columns.append(np.full(X.shape[0], machine))
            else:
                svm, sigmoid = machine
                score = svm.decision_function(K)[:, None]
                columns.append(sigmoid.predict_proba(score)[:, 1])
        return np.column_stack(columns)


def _forest(kind: Any) -> Callable[[Settings, int, Part], Any]:
    def build(settings: Settings, seed: int, rows: Part) -> Any:
        # A tree of 100,000 rows takes as long as ten of 10,000.
        fewer = {"bootstrap": True, "max_samples": 0.1} if len(rows.Y) > LARGE else {}
        return Plain(kind(random_state=seed, n_jobs=1, **fewer, **settings))

    return build


def _half_vote(kind: Any, *, most: int, leaf: int) -> Callable[[Settings, int, Part], Any]:
    """Forest with half a vote more; beyond ``most`` rows x labels, ``leaf`` rows in a leaf.

    A node holds 16 bytes a label, and a tree of pure leaves about as many nodes as rows:
    62 GB for delicious.
    """

    def build(settings: Settings, seed: int, rows: Part) -> Any:
        bounded = {"min_samples_leaf": leaf} if rows.Y.size > most else {}
        return HalfVote(kind(random_state=seed, n_jobs=1, **bounded, **settings))

    return build


def _logistic(settings: Settings, seed: int, rows: Part) -> Any:
    logistic = LogisticRegression(max_iter=300, **settings)
    return Plain(OneVsRestClassifier(ConstantOr(logistic)), scaled=True)


def _chain(settings: Settings, seed: int, rows: Part) -> Any:
    logistic = ConstantOr(LogisticRegression(max_iter=300, **settings))
    return Plain(ClassifierChain(logistic, order="random", random_state=seed), scaled=True)


def _mlp(settings: Settings, seed: int, rows: Part) -> Any:
    # Its own early stopping looks at subset accuracy, near zero with many labels: a fixed
    # number of steps instead, some 2,000 at batches of 200.
    epochs = int(np.clip(2000 * 200 / len(rows.Y), 6, 100))
    model = MLPClassifier((512, 256), max_iter=epochs, random_state=seed, **settings)
    return Plain(model, scaled=True)


def _boosting(settings: Settings, seed: int, rows: Part) -> Any:
    from xgboost import XGBClassifier  # optional: the extra "bench"

    return Plain(XGBClassifier(tree_method="hist", n_jobs=1, random_state=seed, **settings))


def _estimator(kind: Any, **if_large: Any) -> Callable[[Settings, int, Part], Any]:
    """One of the package's own classifiers; ``if_large``: settings for very many rows."""
    takes_seed = "random_state" in inspect.signature(kind).parameters

    def build(settings: Settings, seed: int, rows: Part) -> Any:
        given = {"random_state": seed} if takes_seed else {}
        return kind(**(given | (if_large if len(rows.Y) > LARGE else {}) | dict(settings)))

    return build


ALONE: Settings = {"base": None, "kernel_features": 0}
"""The paper's model: networks, and nothing that goes with them in the default."""


def _networks_alone(settings: Settings, seed: int, rows: Part) -> Any:
    return MPVAEClassifier(random_state=seed, **(dict(ALONE) | dict(settings)))


def _lamp(settings: Settings, seed: int, rows: Part) -> Any:
    """Attention among L labels costs L^2 a row: smaller where labels are many."""
    n, L = rows.Y.shape
    given: dict[str, Any] = {}
    if n > LARGE:
        given = {"max_epochs": 4}
    elif 100 < L <= 300:
        given = {"max_epochs": 15}
    elif L > 300:
        given = {
            "n_dims": 32,
            "n_heads": 1,
            "batch_size": 16,
            "max_epochs": 5,
            "patience": None,
        }
    return LaMP(random_state=seed, **(given | dict(settings)))


def _paper_mpvae(settings: Settings, seed: int, rows: Part) -> Any:
    """Preset "paper", with the steps and, beyond 100 labels, the draws that time allows."""
    n, L = rows.Y.shape
    given = {
        "max_epochs": int(np.clip(2500 * 128 / n, 3, 200)),
        "n_draws": 100 if L <= 100 else 20,
        **settings,
    }
    return MPVAEClassifier(preset="paper", random_state=seed, **given)


def _no_estimator(settings: Settings, seed: int, rows: Part) -> Any:
    raise ValueError("the average of two methods has no fit of its own")


METHODS = {
    "mpvae": Method(
        "MPVAE (our networks)",
        "ours",
        _networks_alone,
        published="MPVAE",
        own_thresholds=True,
    ),
    "mpvae_paper": Method(
        "MPVAE (paper's settings)",
        "ours",
        _paper_mpvae,
        published="MPVAE",
    ),
    "mlknn": Method(
        "MLKNN",
        "paper",
        _estimator(MLKNN),
        grid=({"k": 10}, {"k": 20}),
        published="MLKNN",
        random=False,
    ),
    "mlaram": Method(
        "MLARAM",
        "paper",
        _estimator(MLARAM),
        grid=({}, {"vigilance": 0.95, "threshold": 0.05}, {"n_clusters": 5}),
        published="MLARAM",
        random=False,
    ),
    "sleec": Method(
        "SLEEC",
        "paper",
        _estimator(SLEEC, n_learners=1),
        grid=({}, {"regressor": "neural"}, {"n_neighbors": 80}),
        published="SLEEC",
    ),
    "c2ae": Method(
        "C2AE",
        "paper",
        _estimator(C2AE, max_epochs=6),
        grid=({}, {"gain": 10.0}, {"dropout": 0.5}),
        published="C2AE",
    ),
    "dmvp": Method(
        "DMVP",
        "paper",
        _estimator(DMVP, max_epochs=6),
        grid=({}, {"dropout": 0.3}, {"lr": 2e-3}),
        published="DMVP",
    ),
    "lamp": Method(
        "LaMP",
        "paper",
        _lamp,
        grid=({}, {"max_epochs": 25, "dropout": 0.4}),
        published="LaMP",
    ),
    "forest": Method(
        "random forest",
        "peer",
        _forest(RandomForestClassifier),
        grid=({"n_estimators": 300}, {"n_estimators": 300, "min_samples_leaf": 3}),
    ),
    "extra_trees": Method(
        "extra trees",
        "peer",
        _forest(ExtraTreesClassifier),
        grid=({"n_estimators": 300}, {"n_estimators": 300, "min_samples_leaf": 3}),
    ),
    "svm": Method(
        "calibrated RBF SVM",
        "peer",
        lambda settings, seed, rows: KernelMachine(seed=0, **settings),
        grid=({"C": 1.0}, {"C": 4.0}),
        random=False,
    ),
    "logistic": Method(
        "logistic one-vs-rest",
        "peer",
        _logistic,
        grid=({"C": 1.0}, {"C": 0.1}),
        random=False,
    ),
    "chain": Method("classifier chain", "peer", _chain, grid=({"C": 1.0}, {"C": 0.1})),
    "mlp": Method("MLP", "peer", _mlp, grid=({"alpha": 1e-4}, {"alpha": 1e-1})),
    "boosting": Method(
        "boosting (XGBoost)",
        "peer",
        _boosting,
        grid=(
            {"n_estimators": 100, "max_depth": 4, "learning_rate": 0.1},
            {"n_estimators": 100, "max_depth": 6, "learning_rate": 0.1, "subsample": 0.7},
        ),
    ),
}


PEERS = {
    "mpvae": Method(
        "MPVAE (default)", "ours", _estimator(MPVAEClassifier), own_thresholds=True
    ),
    "mpvae_alone": Method(
        "MPVAE alone",
        "ours",
        _estimator(MPVAEClassifier),
        grid=({"base": None},),
        own_thresholds=True,
    ),
    "mpvae_fast": Method(
        "MPVAE fast",
        "preset",
        _estimator(MPVAEClassifier),
        grid=({"preset": "fast"},),
        own_thresholds=True,
    ),
    "mpvae_best": Method(
        "MPVAE best",
        "preset",
        _estimator(MPVAEClassifier),
        grid=({"preset": "best"},),
        own_thresholds=True,
    ),
    "forest": replace(
        METHODS["forest"], build=_half_vote(RandomForestClassifier, most=1_000_000, leaf=5)
    ),
    "extra_trees": replace(
        METHODS["extra_trees"], build=_half_vote(ExtraTreesClassifier, most=800_000, leaf=8)
    ),
    "svm": METHODS["svm"],
    "average": Method("forest and SVM, averaged", "peer", _no_estimator),
    "logistic": METHODS["logistic"],
    "chain": METHODS["chain"],
    "mlp": METHODS["mlp"],
    "boosting": replace(
        METHODS["boosting"],
        grid=({"n_estimators": 100, "max_depth": 6, "learning_rate": 0.1},),
    ),
    **{name: method for name, method in METHODS.items() if method.kind == "paper"},
}
"""Methods of the comparison with peers: the first setting of each grid on every table."""
