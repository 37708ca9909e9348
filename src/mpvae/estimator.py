"""MPVAEClassifier: the multivariate probit VAE as a scikit-learn classifier."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast, get_args

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from mpvae import decisions, inference, labels, members, model_file, observed, saved
from mpvae.answers import JointMetric, best_answers
from mpvae.checkpoints import Kept
from mpvae.checks import check_parameters, warn_of_unseen
from mpvae.config import Metric, Objective, Preset
from mpvae.errors import ConfigError, DataError
from mpvae.evidence import (
    Source,
    asked_by,
    evidence_of_each,
    fit_evidence,
)
from mpvae.features import beside, count_all_texts, fit_features, with_quantiles
from mpvae.kernel_features import fit_kernel_features
from mpvae.loop import device_named
from mpvae.merging import merge_equal_rows, rows_meant
from mpvae.progress import FitProgress, counting
from mpvae.rows import Rows
from mpvae.streamed import LearnsFromStreams
from mpvae.surface import inside_zero_one
from mpvae.training import threads_that_pay

_SHOW_BAR_ABOVE = 50_000  # rows; a prediction of fewer takes a moment
_TOP_ENTRIES = 2**22  # rows x labels at a time


class MPVAEClassifier(LearnsFromStreams):
    """Multi-label classifier that learns how labels hang together.

    A variational autoencoder encodes features (and, in training, labels) into one latent
    space and decodes the means of a multivariate probit model, whose covariance over labels
    is learnt too (Bai, Kong and Gomes, IJCAI 2020).

    Every parameter left at ``"auto"`` takes its value from ``preset`` and the shape of the
    data; `settings_` shows the values used, `mpvae settings` explains them all.

    Parameters
    ----------
    preset : {"default", "fast", "best", "paper", "authors_code"}
        Where "auto" values come from: what measures best, the same in less time, or with more
        networks, the text of the paper, or the authors' released code.
    objective : {"auto", "likelihood", "paper"}
        What training minimises: "likelihood", a bound of the joint likelihood, for calibrated
        joint and conditional probabilities; "paper", its ranking-heavy weights, for F1 alone;
        "auto", the preset's.
    metric : {"example_f1", "micro_f1", "macro_f1", "hamming", "subset"}
        What `predict` should do well at, and what `score` returns.
    base : {"auto", "kernel", "forest", "boosting"}, None, classifier, or a list
        Who else is asked. Its answers are evidence, which joins the networks with a weight
        for each label from rows that none has seen: a kernel machine, a forest of extra
        trees, boosted trees, any scikit-learn multi-label classifier with ``predict_proba``
        (given the features scaled, without kernel features, a label not observed as absent,
        rows weighted or, if it takes no weights, repeated), or several. "auto": the three
        named ones (in preset "fast" the kernel machine alone), up to 50,000 rows; None, and
        "auto" in the paper's presets: the networks alone.
    latent_dim, n_factors, hidden, hidden_labels, hidden_decoder
        The networks: dimension of z, columns of the factor loadings, layer widths of feature
        encoder, label encoder and decoder.
    dropout, dropout_inputs, dropout_decoder
        Share of units dropped while training in the encoders, among the features, in the
        decoder.
    shared_output, label_branch, hide_labels
        One output layer or one per branch; whether there is a label branch at all; how often
        labels are hidden from it, so that it can do with those that are known.
    quantiles, kernel_features
        The features: whether numeric ones enter by rank, as normal scores, or standardised;
        how many kernel features stand beside them.
    beta, beta_power, lambda_ce, lambda_rank, lambda_entropy, rank_gain, probability_floor
        The objective: weights of its terms, and the constants in which the paper's text and
        code differ.
    n_draws, lr, lr_factors, lr_schedule, lr_decay, lr_decay_times, weight_decay, batch_size
        The optimisation: Monte Carlo draws, learning rate and its course, weight decay, rows
        per step.
    max_epochs, patience, validation_fraction, n_members, monitor
        When to stop and on which rows to judge. ``patience=None`` trains to the end. With
        several members each leaves out another fold, so no row is lost to validation.
    z_draws : int
        Latent codes averaged at prediction; 0 uses the mean of p(z | x).
    threshold : {"auto", "paper", "exact", "per_label"}
        How decision thresholds are chosen from rows held out of training.
    allow_missing_labels : bool
        Whether NaN in ``y`` means "not observed": such labels take part in nothing, rows
        without any observed label included. Off, NaN is an error.
    recalibrate : bool
        Whether slope and shift of each label on the probit scale are fitted to held-out rows
        after training, so that probabilities match frequencies; correlations stay.
    device : str
        "auto" (a GPU if there is one), "cpu", "cuda", ...
    n_jobs : int or None
        Processes that train networks side by side, for long fits: each takes seconds to
        start. None is 1, -1 as many as there are cores.
    random_state : int, RandomState or None
        Same seed and same rows, in whatever order, give the same model.
    verbose : int
        1 shows a progress bar on a terminal.

    Attributes
    ----------
    settings_ : Settings
        The values used.
    label_names_ : ndarray of str
        Names of the labels, from the columns of ``y`` if it had any.
    thresholds_ : dict
        For each metric one threshold, or one per label.
    validation_scores_ : dict
        Every metric on the held-out rows, at thresholds chosen on the same rows.
    history_ : DataFrame
        One row per member and epoch: each loss term and validation score, and how many
        steps were not taken because loss or gradient were not finite (``skipped``).
    n_epochs_ : int
        Epochs the longest-trained member took.
    networks_ : list of torch modules
        The members.
    evidence_ : list
        The fitted sources of evidence; empty without a base.
    kernel_features_ : object or None
        How kernel features are made.

    Examples
    --------
    >>> from mpvae import MPVAEClassifier
    >>> from mpvae.data import simulate_probit
    >>> data = simulate_probit(400, n_labels=5, seed=0)
    >>> model = MPVAEClassifier(n_members=2, random_state=0).fit(data.X, data.Y)
    >>> model.predict_proba(data.X[:2]).shape
    (2, 5)
    """

    evidence_: list[Source]

    def __init__(
        self,
        *,
        preset: Preset = "default",
        objective: Objective = "auto",
        metric: Metric = "micro_f1",
        base: Any = "auto",
        latent_dim: int | str = "auto",
        n_factors: int | str = "auto",
        hidden: tuple[int, ...] | str = "auto",
        hidden_labels: tuple[int, ...] | str = "auto",
        hidden_decoder: tuple[int, ...] | str = "auto",
        shared_output: bool | str = "auto",
        label_branch: bool | str = "auto",
        hide_labels: float | str = "auto",
        kernel_features: int | str = "auto",
        quantiles: bool | str = "auto",
        dropout: float | str = "auto",
        dropout_inputs: float | str = "auto",
        dropout_decoder: float | str = "auto",
        beta: float | str = "auto",
        beta_power: int | str = "auto",
        lambda_ce: float | str = "auto",
        lambda_rank: float | str = "auto",
        lambda_entropy: float | str = "auto",
        rank_gain: float | str = "auto",
        probability_floor: float | str = "auto",
        n_draws: int | str = "auto",
        lr: float | str = "auto",
        lr_factors: float | str = "auto",
        lr_schedule: str = "auto",
        lr_decay: float | str = "auto",
        lr_decay_times: int | str = "auto",
        weight_decay: float | str = "auto",
        batch_size: int | str = "auto",
        max_epochs: int | str = "auto",
        patience: int | str | None = "auto",
        validation_fraction: float | str = "auto",
        n_members: int | str = "auto",
        monitor: str = "auto",
        z_draws: int | str = "auto",
        threshold: str = "auto",
        allow_missing_labels: bool = False,
        recalibrate: bool = False,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.preset = preset
        self.objective = objective
        self.metric = metric
        self.base = base
        self.latent_dim = latent_dim
        self.n_factors = n_factors
        self.hidden = hidden
        self.hidden_labels = hidden_labels
        self.hidden_decoder = hidden_decoder
        self.shared_output = shared_output
        self.label_branch = label_branch
        self.hide_labels = hide_labels
        self.kernel_features = kernel_features
        self.quantiles = quantiles
        self.dropout = dropout
        self.dropout_inputs = dropout_inputs
        self.dropout_decoder = dropout_decoder
        self.beta = beta
        self.beta_power = beta_power
        self.lambda_ce = lambda_ce
        self.lambda_rank = lambda_rank
        self.lambda_entropy = lambda_entropy
        self.rank_gain = rank_gain
        self.probability_floor = probability_floor
        self.n_draws = n_draws
        self.lr = lr
        self.lr_factors = lr_factors
        self.lr_schedule = lr_schedule
        self.lr_decay = lr_decay
        self.lr_decay_times = lr_decay_times
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.n_members = n_members
        self.monitor = monitor
        self.z_draws = z_draws
        self.threshold = threshold
        self.allow_missing_labels = allow_missing_labels
        self.recalibrate = recalibrate
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "thresholds_")  # set last: a fit that failed leaves none

    def fit(
        self,
        X: Any,
        y: Any,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        checkpoint: str | Path | Kept | None = None,
    ) -> Self:
        """Learn from features and labels.

        Rows that are equal in features and labels are merged, their weights added, and put
        into an order of their own: the model depends on which rows there are, not on how
        they are sorted, and repeating a row is the same as giving it weight 2.

        On Ctrl-C the estimator is left fitted with the best networks so far, and the
        KeyboardInterrupt is raised on; before the first network has begun, there is nothing
        to keep.

        Parameters
        ----------
        X : array-like, DataFrame (pandas or polars) or sparse matrix of shape (n, D)
            Features; scaled internally. Columns of a DataFrame may be categories (text).
            NaN is a missing value: replaced by the mean, and marked in a column of its own.
        y : array-like, DataFrame or sparse matrix of shape (n, L), or (n,)
            A 0/1 indicator matrix, or one binary label in any encoding; NaN where a label
            was not observed, see ``allow_missing_labels``.
        X_val, y_val : like X and y, optional
            Rows for early stopping and thresholds. Without them they are taken from X.
        sample_weight : array-like of shape (n,), optional
            Weight of each row in the objective; a row of weight 0, or of less than 1e-250
            times the largest, is left out.
        checkpoint : path, optional
            Folder for the state of the training while it lasts, for one training at a time.
            The same call, after the first one was killed, goes on from there and ends with
            the same model; for that ``random_state`` must be an integer.

        Returns
        -------
        MPVAEClassifier
            Itself, fitted.
        """
        check_parameters(self)
        device_named(self.device)
        self.__dict__.pop("thresholds_", None)
        with self._keeping(checkpoint) as kept:
            self._fit(X, y, X_val, y_val, sample_weight, kept)
            if kept is not None and kept is not checkpoint:
                kept.clear()
        return self

    def _fit(
        self, X: Any, y: Any, X_val: Any, y_val: Any, sample_weight: Any, kept: Kept | None
    ) -> None:
        seed = self._seed()
        with FitProgress(self.verbose > 0) as progress:
            rows, validation = self._read_rows(
                X, y, X_val, y_val, sample_weight, seed, progress.asking, kept
            )
            checkpoints = self._checkpoints(
                kept,
                seed,
                *rows.contents(),
                *(validation.contents() if validation else ()),
            )
            with threads_that_pay(rows, self.settings_):
                fitted = members.fit_members(
                    rows,
                    validation,
                    self.settings_,
                    metric=self.metric,
                    seed=seed,
                    device=device_named(self.device),
                    n_jobs=min(effective_n_jobs(self.n_jobs), self.settings_.n_members),
                    on_epoch=lambda member, record: self._show(progress, member, record),
                    checkpoints=checkpoints,
                )
        self._take(fitted, by_fold=validation is None)

    def predict(self, X: Any, metric: Metric | None = None, *, rule: str = "auto") -> Any:
        """Labels, decided so that ``metric`` is good (default: the estimator's `metric`).

        Parameters
        ----------
        X : table of shape (n, D)
            Features.
        metric : Metric, optional
            See the class.
        rule : {"auto", "threshold", "joint"}
            "threshold" compares each probability with the threshold of the metric. "joint" is
            for example-F1 and subset accuracy, which depend on labels together: the label
            vector of highest expected F1, or the most probable one. "auto" takes the rule
            that did better on held-out rows (`rules_`).

        Returns
        -------
        array (or frame, see `set_output`) of shape (n, L)
            0 or 1; a vector encoded as in `fit` when fitted on one binary label.
        """
        metric = metric or self.metric
        if metric not in get_args(Metric):
            allowed = ", ".join(get_args(Metric))
            raise ConfigError(f"metric must be one of {allowed}, got {metric!r}")
        if rule not in ("auto", "threshold", "joint"):
            raise ConfigError(f"rule must be auto, threshold or joint, got {rule!r}")
        if rule == "joint" and metric not in get_args(JointMetric):
            allowed = " and ".join(get_args(JointMetric))
            raise ConfigError(f"rule 'joint' is for {allowed}, got {metric!r}")
        check_is_fitted(self)
        if not self.multilabel_:
            return self.classes_[(self._marginals(X)[:, 0] > 0.5).astype(int)]
        return self._wrap(self._decide(X, metric, rule), X, self.label_names_)

    def predict_top(
        self, X: Any, k: int = 5
    ) -> tuple[NDArray[np.object_], NDArray[np.float64]]:
        """Names of the ``k`` most probable labels of each row, and their probabilities.

        For very many labels: nothing of rows by labels is made, but for some rows at a time.

        Returns
        -------
        names, probabilities : arrays of shape (n, k)
            The most probable first.
        """
        check_is_fitted(self)
        L = len(self.label_names_)
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= L:
            raise ConfigError(f"k must be an integer from 1 to {L} (the labels), got {k!r}")
        x = self._encode(X)
        n = x.shape[0]
        which, P = np.empty((n, k), np.int64), np.empty((n, k))
        step = max(1, _TOP_ENTRIES // L)
        with self._bar("predict", n) as bar:
            for start in range(0, n, step):
                piece = slice(start, min(n, start + step))
                p = inference.marginals(self.networks_, x[piece], self.settings_.z_draws)
                top = np.argpartition(-p, k - 1, axis=1)[:, :k]
                order = np.argsort(-np.take_along_axis(p, top, 1), axis=1, kind="stable")
                which[piece] = np.take_along_axis(top, order, 1)
                P[piece] = np.take_along_axis(p, which[piece], 1)
                bar.advance(bar.task_ids[0], piece.stop - start)
        return self.label_names_[which], inside_zero_one(inference.refuse_not_a_number(P))

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Value of `metric` for the predictions on X; accuracy for one binary label.

        With ``allow_missing_labels``, over the labels that are not NaN.
        """
        check_is_fitted(self)
        if not self.multilabel_:
            return float(super().score(X, y, sample_weight=sample_weight))
        if sample_weight is not None:
            raise DataError("score takes no sample_weight for several labels; leave it out")
        labels.refuse_other_order(X, y)
        Y = self._read_known_labels(y, allow_missing=bool(self.allow_missing_labels))
        return observed.score(Y, self._decide(X, self.metric, "auto"), self.metric)

    def save(self, folder: str | Path) -> None:
        """Write the fitted model into a folder; `mpvae.load_model` reads it."""
        check_is_fitted(self)
        model_file.write_model(folder, *saved.to_file(self))

    def _decide(self, X: Any, metric: Metric, rule: str) -> NDArray[np.int64]:
        if rule == "auto":
            rule = self.rules_.get(metric, "threshold")
        if rule == "threshold":
            return decisions.apply_threshold(self._marginals(X), self.thresholds_[metric])
        x = self._encode(X)
        wanted = cast("JointMetric", metric)
        usual = self.validation_scores_.get("example_f1", 1.0)
        with self._bar("decide", x.shape[0]) as bar:
            answers = best_answers(
                self.networks_,
                x,
                [wanted],
                empty_value=1.0 if np.isnan(usual) else usual,
                on_rows=lambda n: bar.advance(bar.task_ids[0], n),
            )
        return answers[wanted]

    def _read_rows(
        self,
        X: Any,
        y: Any,
        X_val: Any,
        y_val: Any,
        sample_weight: ArrayLike | None,
        seed: int,
        on_source: Callable[[str], None] = lambda name: None,
        kept: Kept | None = None,
    ) -> tuple[Rows, Rows | None]:
        """Rows to learn from and to validate on, as the networks see them, evidence included.

        Sets what comes before the networks: `features_`, `settings_`, `evidence_`.
        """
        if (X_val is None) != (y_val is None):
            raise DataError("X_val and y_val belong together; give both or neither")
        allow_missing = bool(self.allow_missing_labels)
        X, Y = self._read_training(X, y, allow_missing=allow_missing)
        weight = _check_sample_weight(
            sample_weight, np.empty((X.shape[0], 1)), dtype=np.float64, ensure_non_negative=True
        )
        if weight.max(initial=0) > np.finfo(np.float64).max / max(1, len(weight)):
            raise DataError("sample_weight adds up to infinity; divide all by one number")
        texts = count_all_texts(X, rows_meant(weight))
        X, Y, weight, number = merge_equal_rows(X, Y, weight)
        if not observed.has_observed(Y):
            raise DataError("y holds no observed label, NaN alone; nothing can be learnt")
        warn_of_unseen(Y, self.label_names_)
        if not self.multilabel_ and len(np.unique(Y[~np.isnan(Y)])) < 2:
            raise DataError(
                "y holds one class once rows of weight 0 are left out; both are needed"
            )
        self.features_ = fit_features(X, weight, self._names(), texts)
        self.settings_ = self._resolve(
            *Y.shape,
            missing=observed.has_missing(Y),
            sparse=sp.issparse(X),
            validated=X_val is not None,
        )
        if self.settings_.quantiles:
            self.features_ = with_quantiles(self.features_, X, weight)
        x = self.features_.apply(X)
        self.kernel_features_, wide = None, x
        if self.settings_.kernel_features:
            n_landmarks = self.settings_.kernel_features
            self.kernel_features_ = fit_kernel_features(x, weight, n_landmarks, seed)
            wide = beside(x, self.kernel_features_.apply(x))
        self.evidence_ = []  # not there yet
        validation = None
        if X_val is not None:
            X_val, Y_val = self._read_validation(X_val, y_val, allow_missing=allow_missing)
            validation = Rows(X_val, Y_val, np.ones(X_val.shape[0]))
        asked = asked_by(self.base, self.preset, *Y.shape)
        checkpoints = self._checkpoints(kept, seed, x, Y, weight) if asked else None
        sources, left_out = fit_evidence(asked, x, Y, weight, seed, on_source, checkpoints)
        if validation is not None and sources:
            said = evidence_of_each(sources, validation.X[:, : self.features_.n_outputs])
            validation = replace(validation, evidence=said)
        self.evidence_ = sources  # their weights are not known yet
        return Rows(wide, Y, weight, left_out, number), validation

    def _marginals(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        x = self._encode(X)
        n = x.shape[0]
        with counting("predict", n, self.verbose > 0 and n > _SHOW_BAR_ABOVE) as bar:
            p = inference.marginals(
                self.networks_,
                x,
                self.settings_.z_draws,
                lambda done: bar.advance(bar.task_ids[0], done),
            )
        return inside_zero_one(inference.refuse_not_a_number(p))


def load_model(folder: str | Path) -> MPVAEClassifier:
    """Read a model that `MPVAEClassifier.save` or ``mpvae fit`` wrote.

    Raises
    ------
    ModelFileError
        When the folder is missing, incomplete, changed, or of a newer version.
    """
    return saved.from_file(MPVAEClassifier, folder, *model_file.read_model(folder))
