"""What the joint distribution is good for: the cells behind `benchmarks/joint.py`."""

import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import multivariate_normal
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain
from sklearn.preprocessing import StandardScaler

import speed
from harness import datasets
from harness.cells import Cell, Stopwatch, number, peak_gb, provenance
from harness.datasets import Part, Parts, join
from harness.methods import ALONE, ConstantOr, plain, probabilities
from mpvae import MPVAEClassifier, conformal, joint, metrics
from mpvae.config import DataShape
from mpvae.data import simulate_probit, stratified_split
from mpvae.decisions import apply_threshold, fit_threshold
from mpvae.networks import MPVAE
from mpvae.presets import resolve

CONDITIONAL = (
    "eco_butterflies",
    "norberg_birds",
    "norberg_vegetation",
    "bbs_birds",
    "fish_ebs",
    "eco_fungi_beech",
    "yeast",
)
SHARES = (0.0, 0.1, 0.5, 0.9)
MISSING = ("yeast", "bibtex")
MISSING_SHARES = ("0.2", "0.5", "0.8")
MISSING_WAYS = ("masked", "zeros", "dropped")
DECISIONS = ("yeast", "delicious", "eco_butterflies")
SETS = ("yeast", "scene", "eco_butterflies", "norberg_birds", "fish_ebs")
COVERAGE = 0.9
SEEDS = (0, 1, 2)
_ROWS = 5  # L of the oracles, at most


def cells(sections: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """Cells of the named sections, small ones first."""
    found = []
    for seed in seeds:
        by_section = {
            "oracles": [Cell("oracles", "simulated", "mpvae", seed)],
            "conditional": [Cell("conditional", d, "all", seed) for d in CONDITIONAL],
            "missing": [
                Cell("missing", d, way, seed, share)
                for d in MISSING
                for share in MISSING_SHARES
                for way in MISSING_WAYS
            ],
            "decisions": [Cell("decisions", d, "mpvae", seed) for d in DECISIONS],
            "sets": [Cell("sets", d, "mpvae", seed) for d in SETS],
            "speed": [Cell("speed", "simulated", "mpvae", seed)],
        }
        found += [cell for section in sections for cell in by_section[section]]
    return found


def run(cell: Cell, results: Path) -> None:
    """Run a cell and write its file."""
    warnings.simplefilter("ignore")  # of peers: rare labels, iterations
    work: dict[str, Callable[[Cell], dict[str, Any]]] = {
        "oracles": _oracles,
        "conditional": _conditional,
        "missing": _missing,
        "decisions": _decisions,
        "sets": _sets,
        "speed": _speed,
    }
    watch = Stopwatch()
    content = work[cell.experiment](cell)
    ended = {"peak_gb": round(peak_gb(), 2), "seconds_in_all": watch.seconds()}
    cell.write(results, content | ended | provenance())


# ---------------------------------------------------------------- rows


def parts_of(name: str, seed: int) -> Parts:
    """Official test rows, or a fifth where there are none; a tenth of the rest to judge by."""
    table = datasets.read(name)
    Y = table.labels().to_numpy().astype(np.int64)
    rest, test = np.arange(len(Y)), table.splits.get("test")
    if test is None:
        split = stratified_split(Y, {"rest": 0.8, "test": 0.2}, seed=seed)
        rest, test = split["rest"], split["test"]
    rest = np.setdiff1d(rest, test)
    held = stratified_split(Y[rest], {"learn": 0.9, "judge": 0.1}, seed=seed)
    index = (rest[held["learn"]], rest[held["judge"]], test)
    tables = [table.rows(rows) for rows in index]
    return Parts(*(Part(t.features(), t.labels().to_numpy().astype(np.int64)) for t in tables))


def hidden(Y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels with NaN where they are not known; ``share`` of them, at random, are."""
    known = np.random.default_rng([seed, int(100 * share)]).random(Y.shape) < share
    return np.where(known, Y, np.nan)


# ---------------------------------------------------------------- given some labels


def _conditional(cell: Cell) -> dict[str, Any]:
    parts = parts_of(cell.data, cell.seed)
    contenders: list[tuple[str, Any]] = [
        ("MPVAE, given the known labels", _Ours(cell.seed)),
        ("MPVAE, marginals", None),  # of the same model
        ("forest, marginals", _Forest(cell.seed)),
        ("forest that sees the known labels", _SeeingForest(cell.seed)),
        ("classifier chain", _Chain(cell.seed)),
    ]
    content: dict[str, Any] = {"methods": {}}
    ours = None
    for name, contender in contenders:
        watch = Stopwatch()
        if contender is None:
            contender = _Marginals(ours)
        else:
            contender.fit(parts)
        if isinstance(contender, _Ours):
            ours = contender.model
        entry: dict[str, Any] = {"cpu_seconds": watch.cpu_seconds(), "by_share": {}}
        for share in SHARES:
            entry["by_share"][str(share)] = _scores_of_unknown(
                contender, parts, share, cell.seed
            )
        content["methods"][name] = entry
    log_p, error = ours.log_prob(parts.test.X, parts.test.Y, return_std=True)
    content["joint_nll"] = {
        "MPVAE": float(-log_p.mean()),
        # A row of which too few draws count has no error; the mean's is then not known.
        "MPVAE_std": number(np.sqrt((error**2).sum()) / len(error)),
        "forest": content["methods"]["forest, marginals"]["by_share"]["0.0"]["log_loss"]
        * parts.test.Y.shape[1],
    }
    return content


def _scores_of_unknown(model: Any, parts: Parts, share: float, seed: int) -> dict[str, float]:
    """Log-loss and micro-F1 of the labels not known; threshold from the judging rows."""
    found = {}
    for name, part in (("judge", parts.validation), ("test", parts.test)):
        known = hidden(part.Y, share, seed)
        unknown = np.isnan(known)
        P = np.clip(model.predict(part.X, known), 1e-6, 1 - 1e-6)
        found[name] = part.Y[unknown][:, None], P[unknown][:, None]
    threshold = fit_threshold(*found["judge"], metric="micro_f1", kind="exact")
    Y, P = found["test"]
    return {
        "log_loss": metrics.log_loss(Y, P),
        "micro_f1": metrics.micro_f1(Y, apply_threshold(P, threshold)),
    }


class _Ours:
    def __init__(self, seed: int) -> None:
        self.model = MPVAEClassifier(objective="likelihood", random_state=seed, **ALONE)

    def fit(self, parts: Parts) -> None:
        self.model.fit(*parts.train, *parts.validation)

    def predict(self, X: Any, known: np.ndarray) -> np.ndarray:
        return self.model.predict_conditional(X, known)


class _Marginals:
    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, X: Any, known: np.ndarray) -> np.ndarray:
        return self.model.predict_proba(X)


class _Forest:
    """A random forest of 300 trees; what is known does not change its answer."""

    def __init__(self, seed: int) -> None:
        self.model = RandomForestClassifier(300, random_state=seed, min_samples_leaf=3)

    def fit(self, parts: Parts) -> None:
        self.model.fit(plain(parts.train.X), parts.train.Y)

    def predict(self, X: Any, known: np.ndarray) -> np.ndarray:
        return probabilities(self.model, plain(X))


class _SeeingForest(_Forest):
    """A forest whose features are also the known labels, and which of them are known.

    It learns from four copies of the training rows with random shares of the labels known.
    """

    COPIES = 4

    def fit(self, parts: Parts) -> None:
        rng = np.random.default_rng(self.model.random_state)
        X, Y = plain(parts.train.X), parts.train.Y
        seen = []
        for _ in range(self.COPIES):
            share = rng.random((len(Y), 1))
            seen.append(self._features(X, np.where(rng.random(Y.shape) < share, Y, np.nan)))
        self.model.fit(np.vstack(seen), np.vstack([Y] * self.COPIES))

    def predict(self, X: Any, known: np.ndarray) -> np.ndarray:
        return probabilities(self.model, self._features(plain(X), known))

    @staticmethod
    def _features(X: np.ndarray, known: np.ndarray) -> np.ndarray:
        return np.hstack([X, np.nan_to_num(known), ~np.isnan(known)]).astype(np.float32)


class _Chain:
    """A chain of logistic regressions, random order; a known label replaces its prediction."""

    def __init__(self, seed: int) -> None:
        logistic = ConstantOr(LogisticRegression(max_iter=300))
        self.model = ClassifierChain(logistic, order="random", random_state=seed)

    def fit(self, parts: Parts) -> None:
        self.scaler = StandardScaler().fit(plain(parts.train.X))
        self.model.fit(self.scaler.transform(plain(parts.train.X)), parts.train.Y)

    def predict(self, X: Any, known: np.ndarray) -> np.ndarray:
        X = self.scaler.transform(plain(X))
        P = np.empty(known.shape)
        before = np.empty((len(X), 0))
        for position, label in enumerate(self.model.order_):
            step = self.model.estimators_[position]
            P[:, label] = step.predict_proba(np.hstack([X, before]))[:, 1]
            value = np.where(np.isnan(known[:, label]), P[:, label] >= 0.5, known[:, label])
            before = np.column_stack([before, value])
        return P


# ---------------------------------------------------------------- missing labels


def _missing(cell: Cell) -> dict[str, Any]:
    """Micro-F1 on complete test rows after training on what is left of the labels."""
    parts = datasets.load(cell.data, cell.seed)
    rows = join(parts.train, parts.validation)
    Y = hidden(rows.Y, 1 - float(cell.variant), cell.seed)
    X: Any = rows.X
    model = MPVAEClassifier(
        random_state=cell.seed, allow_missing_labels=cell.method == "masked", **ALONE
    )
    if cell.method == "zeros":
        Y = np.nan_to_num(Y)
    elif cell.method == "dropped":
        whole = np.flatnonzero(~np.isnan(Y).any(axis=1))
        if len(whole) < 10:
            return {"reason": f"{len(whole)} complete rows are left"}
        X, Y = (X.iloc[whole] if hasattr(X, "iloc") else X[whole]), Y[whole]
    watch = Stopwatch()
    model.fit(X, Y if cell.method == "masked" else Y.astype(np.int64))
    Z = model.predict(parts.test.X)
    score = metrics.micro_f1(parts.test.Y, Z)
    return {"micro_f1": score, "rows": len(Y), "cpu_seconds": watch.cpu_seconds()}


# ---------------------------------------------------------------- decisions and sets


def _decisions(cell: Cell) -> dict[str, Any]:
    """Example-F1 and subset accuracy by threshold and by the joint distribution."""
    parts = parts_of(cell.data, cell.seed)
    rows = join(parts.train, parts.validation)
    given = {"n_members": 1} if cell.data == "delicious" else {}  # five take ten minutes
    model = MPVAEClassifier(random_state=cell.seed, **ALONE, **given).fit(*rows)
    content: dict[str, Any] = {"rules": model.rules_}
    for metric in ("example_f1", "subset"):
        content[metric] = {
            rule: metrics.DECISION_METRICS[metric](
                parts.test.Y, model.predict(parts.test.X, metric=metric, rule=rule)
            )
            for rule in ("threshold", "joint", "auto")
        }
    return content


def _sets(cell: Cell) -> dict[str, Any]:
    """Coverage and size of conformal sets, and of sets by the product of marginals."""
    parts = parts_of(cell.data, cell.seed)
    rows = join(parts.train, parts.validation)
    model = MPVAEClassifier(random_state=cell.seed, **ALONE).fit(*rows)
    # Sets are calibrated on as many rows: coverage varies with these as with the test rows.
    by_both = np.sqrt(1 + len(parts.test.Y) / len(rows.Y))
    content: dict[str, Any] = {}
    for guarantee in ("all", "recall", "label"):
        sets = model.predict_set(parts.test.X, COVERAGE, guarantee=guarantee)
        found = conformal.coverage_report(parts.test.Y, sets)
        content[guarantee] = {
            "coverage": found[guarantee],
            "error": float(found[f"{guarantee}_se"] * by_both),
            "size": found["size"],
        }
    content["independent"] = _independent_sets(model, parts.test)
    return content


def _independent_sets(model: Any, test: Part) -> dict[str, float]:
    """Smallest sets that hold all labels with probability .9 were labels independent."""
    P = model.predict_proba(test.X)
    order = np.argsort(-P, axis=1)
    outside = np.log1p(-np.take_along_axis(P, order, 1))
    rest = np.cumsum(outside[:, ::-1], axis=1)[:, ::-1]  # log P(no label from rank k on)
    size = (rest < np.log(COVERAGE)).sum(1)
    rank = np.argsort(order, axis=1)
    inside = rank < size[:, None]
    covered = ~((test.Y == 1) & ~inside).any(axis=1)
    return {
        "coverage": float(covered.mean()),
        "error": float(covered.std() / np.sqrt(len(covered))),
        "size": float(size.mean()),
    }


# ---------------------------------------------------------------- oracles and speed


def _oracles(cell: Cell) -> dict[str, Any]:
    """Small networks against SciPy's normal cdf and against themselves, in standard errors."""
    torch.manual_seed(cell.seed)
    in_errors: dict[str, float] = {}
    absolute: dict[str, float] = {}

    def note(name: str, difference: np.ndarray, error: np.ndarray) -> None:
        off = np.abs(difference)
        in_errors[name] = max(in_errors.get(name, 0.0), float((off / error).max()))
        absolute[name] = max(absolute.get(name, 0.0), float(off.max()))

    for L in range(2, _ROWS + 1):
        network, X = _small_network(L)
        Y = np.array(list(np.ndindex(*(2,) * L)), dtype=float)  # all 2^L vectors
        x = np.repeat(X, len(Y), axis=0)
        value, error = joint.log_prob([network], x, Y, 4096)
        exact = _orthants(network, X, Y)
        scipy_error = 1e-5 / exact  # of the log, from SciPy's absolute tolerance
        note("joint against SciPy", value - np.log(exact), np.hypot(error, scipy_error))
        p = np.exp(value)
        note(
            "sum over all label vectors",
            np.array([p.sum() - 1]),
            np.array([np.sqrt(((p * error) ** 2).sum())]),
        )
        known = np.where(np.arange(L) == 0, Y, np.nan)
        evidence, evidence_error = joint.log_prob([network], x, known, 4096)
        answer = joint.conditional([network], x, known, 4096)
        of_first = np.array([exact[Y[:, 0] == y].sum() for y in Y[:, 0]])
        for label in range(1, L):
            with_label = [exact[(Y[:, 0] == y) & (Y[:, label] == 1)].sum() for y in Y[:, 0]]
            truth = np.array(with_label) / of_first
            spread = np.sqrt(truth * (1 - truth) / answer.effective_draws)
            error = np.hypot(spread, 1e-5 / of_first)
            note("conditional against SciPy", answer.P[:, label] - truth, error)
        error = np.hypot(evidence_error, 1e-5 / of_first)
        note("marginal of the joint", evidence - np.log(of_first), error)
    return {"in_standard_errors": in_errors, "absolute": absolute}


def _small_network(L: int) -> tuple[MPVAE, np.ndarray]:
    """An untrained network whose code does not vary, and one row of features."""
    given = {"hidden": (8,), "latent_dim": 2, "n_factors": 3}
    network = MPVAE(2, L, resolve("default", given, DataShape(100, 2, L))).double()
    network.prior_net[-1].bias.data[2:] = -80.0  # log-variance of z
    network.prior_net[-1].weight.data[2:] = 0.0
    network.B.data = torch.randn(L, 3).double()
    return network.eval().requires_grad_(False), np.random.default_rng(L).normal(size=(1, 2))


def _orthants(network: MPVAE, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Probability of each label vector given z, by SciPy."""
    x = torch.as_tensor(X)
    m = network.decode(x, network.prior(x).mean)[0].numpy()
    B = network.B.numpy()
    covariance = np.eye(len(B)) + B @ B.T
    values = []
    for y in Y:
        t = 2 * y - 1
        values.append(
            multivariate_normal.cdf(
                t * m, cov=covariance * np.outer(t, t), maxpts=2_000_000, abseps=1e-6
            )
        )
    return np.array(values)


def _speed(cell: Cell) -> dict[str, Any]:
    """Seconds for 1,000 rows, 100 labels, half known, by the default model of five members."""
    torch.set_num_threads(2)
    data = simulate_probit(2000, n_labels=100, seed=cell.seed)
    model = MPVAEClassifier(random_state=cell.seed, max_epochs=5, **ALONE).fit(
        data.X[1000:], data.Y[1000:]
    )
    known = hidden(data.Y[:1000], 0.5, cell.seed)
    start = time.perf_counter()
    _, effective = model.predict_conditional(data.X[:1000], known, return_ess=True)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "median_effective_draws": float(np.median(effective)),
        "fit": {str(k): _fit_in_steps(cell.seed, n_members=k) for k in (1, 5)},
    }


def _fit_in_steps(seed: int, n_members: int) -> dict[str, float]:
    """Time of a fit to eco_butterflies, in steps of the plain formulas at as many labels.

    Plain steps are timed before and after, so that a slow moment touches both alike.
    """
    parts = parts_of("eco_butterflies", seed)
    step = speed.Step(parts.train.Y.shape[1])
    model = MPVAEClassifier(
        objective="likelihood", random_state=seed, n_members=n_members, **ALONE
    )
    before = speed.seconds(step.plain, repeats=3)
    start = time.perf_counter()
    model.fit(*parts.train, *parts.validation)
    seconds = time.perf_counter() - start
    plain = (before + speed.seconds(step.plain, repeats=3)) / 2
    return {"seconds": seconds, "plain_step_seconds": plain, "plain_steps": seconds / plain}
