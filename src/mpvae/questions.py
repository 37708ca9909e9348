"""What one can ask a fitted model about labels together, beyond the probability of each."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.inspection import permutation_importance
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from mpvae import associations, conformal, inference, joint, labels, observed
from mpvae.config import Settings
from mpvae.conformal import Calibration, Guarantee
from mpvae.data import LabelledTable
from mpvae.errors import ConfigError, DataError, MPVAEError
from mpvae.networks import MPVAE
from mpvae.progress import counting
from mpvae.surface import MultiLabelClassifier, inside_zero_one

_SHOW_BAR_ABOVE = 500  # rows; fewer take a moment
MAX_DRAWS = 2**16
MAX_PAIRS = 10**6
"""Pairs of labels in a table of associations, unless fewer are asked for."""


class JointQuestions(MultiLabelClassifier):
    """Joint and conditional probabilities, samples, sets with a guarantee, associations.

    Members are one mixture: all answers average over them, weighing each by how well it
    explains what is known.
    """

    networks_: list[MPVAE]
    code_loadings_: list[NDArray[np.float64]]
    feature_loadings_: list[NDArray[np.float64]]
    settings_: Settings
    members_by_fold_: bool
    calibration_: Calibration | None
    verbose: int

    def log_prob(
        self, X: Any, Y: Any, *, n_draws: int = 256, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log-probability of the label vectors in ``Y``, in nats.

        Parameters
        ----------
        X : table of shape (n, D)
            Features.
        Y : array-like or DataFrame of shape (n, L)
            0, 1, or NaN: not observed, and integrated out.
        n_draws : int
            Draws of code and factors per row and member.
        return_std : bool
            Also return the Monte Carlo standard error, of shape (n,).

        Returns
        -------
        ndarray of shape (n,)
        """
        x, known = self._question(X, Y, n_draws)
        with self._bar("log_prob", len(known)) as bar:
            values, errors = joint.log_prob(
                self.networks_, x, known, n_draws, lambda n: bar.advance(bar.task_ids[0], n)
            )
        return (values, errors) if return_std else values

    def predict_conditional(
        self, X: Any, known: Any, *, n_draws: int = 128, return_ess: bool = False
    ) -> Any:
        """Probability of every label given the features and the labels already known.

        Parameters
        ----------
        X : table of shape (n, D)
            Features.
        known : array-like or DataFrame of shape (n, L)
            1 present, 0 absent, NaN not known. A frame may leave out labels: they are not
            known.
        n_draws : int
            Draws of code and factors per row and member.
        return_ess : bool
            Also return the effective number of draws behind each row, of shape (n,).

        Returns
        -------
        array (or frame, see `set_output`) of shape (n, L)
            Known labels as they were given.
        """
        x, values = self._question(X, known, n_draws)
        with self._bar("predict", len(values)) as bar:
            answer = joint.conditional(
                self.networks_, x, values, n_draws, lambda n: bar.advance(bar.task_ids[0], n)
            )
        P = np.where(np.isnan(values), inside_zero_one(answer.P), values)
        P = self._wrap(P, X, self.label_names_)
        return (P, answer.effective_draws) if return_ess else P

    def sample(self, X: Any, n: int = 1, *, random_state: Any = None) -> NDArray[np.int8]:
        """Label vectors drawn from the joint distribution: (rows, n, L) of 0 and 1."""
        check_is_fitted(self)
        _check_draws("n", n)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        generator = torch.Generator().manual_seed(seed)
        return joint.sample(self.networks_, self._encode(X), n, generator)

    def simulate(self, X: Any, *, random_state: Any = None) -> LabelledTable:
        """A data set the model holds possible: these features, with labels drawn for them.

        Fit it again to see what a model can learn from so many rows, or compare its
        statistics with those of the real labels.
        """
        Y = self.sample(X, random_state=random_state)[:, 0].astype(np.int32)
        X = labels.as_pandas(X)
        if isinstance(X, pd.DataFrame):
            X = X.reset_index(drop=True)
        else:
            X = self._check_features(X, reset=False)
            X = X.astype(np.float32)
        return LabelledTable(
            X, Y, self._names(), tuple(map(str, self.label_names_)), name="simulated"
        )

    def predict_set(
        self, X: Any, coverage: float = 0.9, *, guarantee: Guarantee = "all"
    ) -> Any:
        """Labels that may be present: every other one is excluded, with a guarantee.

        Parameters
        ----------
        X : table of shape (n, D)
            Features.
        coverage : float in (0, 1)
            How sure the guarantee is.
        guarantee : {"all", "recall", "label"}
            "all": all true labels of a row are inside with probability ``coverage``.
            "recall": on average over rows that share of the true labels is inside.
            "label": each label, where present, is inside with probability ``coverage``.

        Returns
        -------
        array (or frame, see `set_output`) of shape (n, L)
            1 where the label is in the set.

        Notes
        -----
        Conformal, calibrated on rows held out of training. Exact for rows like those given as
        ``X_val``; with folds, probabilities of the held-out rows are one member's and those of
        new rows are a mean, so coverage is only as close as docs/joint.md shows.
        """
        check_is_fitted(self)
        if self.calibration_ is None:
            raise DataError(
                "the model knows no held-out rows, so sets have no guarantee: it was fitted "
                "without any, or saved by a version that kept none; fit again, with X_val and "
                "y_val, several members, or a validation_fraction above 0"
            )
        threshold = self.calibration_.threshold(coverage, guarantee)
        few = self.calibration_.too_few(coverage, guarantee)
        if few.any():
            which = f"{few.sum()} of {few.size} labels" if few.size > 1 else "all labels"
            warnings.warn(
                f"held-out rows are too few to exclude anything at coverage {coverage:g}: "
                f"{which} are always inside; at least {np.ceil(coverage / (1 - coverage)):.0f} "
                "are needed, for guarantee 'label' with that label",
                stacklevel=2,
            )
        inside = conformal.label_sets(self._marginals(X), threshold)
        return self._wrap(inside, X, self.label_names_)

    def associations(self, *, level: float = 0.95, top: int | None = None) -> pd.DataFrame:
        """Pairs of labels with their residual correlation, its interval, and the raw one.

        Parameters
        ----------
        level : float in (0, 1)
            Of the intervals.
        top : int, optional
            The strongest pairs alone; default: all, up to a million.

        See Also
        --------
        mpvae.associations.pair_table : what the columns are.
        """
        check_is_fitted(self)
        L = len(self.label_names_)
        if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
            raise ConfigError(f"top must be an integer from 1 on, got {top!r}")
        if top is not None or L * (L - 1) // 2 > MAX_PAIRS:
            return associations.strongest_pairs(
                self.label_names_,
                self._residual_loadings(),
                self.feature_loadings_,
                min(top or MAX_PAIRS, max(1, L * (L - 1) // 2)),
                level=level,
                by_fold=self.members_by_fold_,
            )
        return associations.pair_table(
            self.label_names_,
            np.stack(self._residual_covariances()),
            np.stack([_feature_covariance(F) for F in self.feature_loadings_]),
            level=level,
            by_fold=self.members_by_fold_,
        )

    def label_groups(self, n_groups: int | None = None) -> pd.Series:
        """Group of each label, by clustering of the residual correlation; 0 is the largest."""
        check_is_fitted(self)
        if len(self.label_names_) > associations.MANY:
            groups = associations.group_many(self._residual_loadings(), n_groups)
        else:
            groups = associations.group_labels(self.correlation_, n_groups)
        return pd.Series(groups, index=self.label_names_, name="group")

    def feature_importance(
        self, X: Any, Y: Any, *, n_repeats: int = 5, random_state: Any = None
    ) -> pd.DataFrame:
        """How much worse each label is predicted when a feature is shuffled.

        Parameters
        ----------
        X, Y : tables of shape (n, D) and (n, L)
            Rows to judge on, best ones that were not trained on; NaN labels are left out.
        n_repeats : int
            Shuffles of each feature.

        Returns
        -------
        DataFrame
            One row per feature and label: ``feature``, ``label``, ``importance`` (rise of the
            log-loss, nats per row), ``std`` over shuffles; the most important first.
        """
        check_is_fitted(self)
        labels.refuse_other_order(X, Y)
        X = labels.as_pandas(X)
        if sp.issparse(X):
            raise DataError("feature_importance shuffles dense columns; give X.toarray()")
        Y = self._read_known_labels(Y, allow_missing=True)
        Y = Y.toarray() if hasattr(Y, "toarray") else Y

        def score(model: "JointQuestions", X: Any, Y: NDArray[Any]) -> dict[str, float]:
            P = model._marginals(X)
            return {str(j): -observed.log_loss(Y[:, [j]], P[:, [j]]) for j in range(Y.shape[1])}

        found = permutation_importance(
            self, X, Y, scoring=score, n_repeats=n_repeats, random_state=random_state
        )
        table = pd.DataFrame(
            [
                (
                    feature,
                    label,
                    of_label["importances_mean"][i],
                    of_label["importances_std"][i],
                )
                for label, of_label in zip(self.label_names_, found.values(), strict=True)
                for i, feature in enumerate(self._names())
            ],
            columns=["feature", "label", "importance", "std"],
        )
        return table.sort_values("importance", ascending=False, ignore_index=True)

    def latent_effects(self, X: Any) -> pd.DataFrame:
        """What moving each latent dimension does to the probability of each label.

        From one standard deviation below its mean given the features to one above, the other
        dimensions at their means, on average over rows of X. Of the first network: the
        dimensions of another are others.

        Returns
        -------
        DataFrame
            A row for each dimension, z1, z2, ...; a column for each label.
        """
        check_is_fitted(self)
        effects = inference.latent_effects(self.networks_[0], self._encode(X))
        names = [f"z{k + 1}" for k in range(len(effects))]
        return pd.DataFrame(effects, index=names, columns=self.label_names_)

    @property
    def sigma_g_(self) -> NDArray[np.float64]:
        """Covariance Sigma_g = I + B B^T of the probit model, mean over members, (L, L)."""
        check_is_fitted(self)
        each = [_covariance(net.B.cpu().numpy()) for net in self.networks_]
        return np.asarray(np.mean(each, axis=0))

    @property
    def covariance_(self) -> NDArray[np.float64]:
        """Covariance of the labels' utilities given the features, mean over members, (L, L).

        Everything the features leave unexplained: `sigma_g_` plus what the latent code adds
        on average over training rows. See docs/correlation.md.
        """
        check_is_fitted(self)
        return np.asarray(np.mean(self._residual_covariances(), axis=0))

    @property
    def correlation_(self) -> NDArray[np.float64]:
        """Residual correlation of the labels given the features: `covariance_`, scaled."""
        correlation = associations.as_correlation(self.covariance_)
        np.fill_diagonal(correlation, 1.0)  # to the last digit
        return correlation

    def correlation_block(
        self, labels: Sequence[str], others: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """`correlation_` of some labels with each other, or with others.

        Where there are thousands of labels, the whole matrix is more than one can look at.

        Parameters
        ----------
        labels, others : sequence of str
            Names; without ``others``, the same again.

        Returns
        -------
        DataFrame
            A row for each of ``labels``, a column for each of ``others``.
        """
        check_is_fitted(self)
        if isinstance(labels, str) or isinstance(others, str):
            raise ConfigError("labels and others are lists of names; put one name in brackets")
        place = {str(name): k for k, name in enumerate(self.label_names_)}
        names = [
            list(map(str, group)) for group in (labels, labels if others is None else others)
        ]
        unknown = [name for group in names for name in group if name not in place]
        if unknown:
            raise DataError(f"{unknown[0]!r} is no label of the model; see label_names_")
        rows, columns = ([place[name] for name in group] for group in names)
        covariance = np.zeros((len(rows), len(columns)))
        variance = np.ones(len(place))
        for loadings in self._residual_loadings():
            covariance += loadings[rows] @ loadings[columns].T / len(self.networks_)
            variance += (loadings**2).sum(1) / len(self.networks_)
        found = covariance / np.sqrt(np.outer(variance[rows], variance[columns]))
        found[np.equal.outer(rows, columns)] = 1.0
        return pd.DataFrame(found, index=names[0], columns=names[1])

    @property
    def label_embedding_(self) -> NDArray[np.float64]:
        """Vector of each label: rows of the Cholesky factor of `sigma_g_`, as in the paper."""
        try:
            return np.linalg.cholesky(self.sigma_g_).astype(np.float64)
        except np.linalg.LinAlgError as error:
            raise MPVAEError(
                f"the covariance of {len(self.label_names_)} labels has no Cholesky factor; "
                "the model's weights are damaged, train it again"
            ) from error

    def _residual_loadings(self) -> list[NDArray[np.float64]]:
        pairs = zip(self.networks_, self.code_loadings_, strict=True)
        return [np.hstack([net.B.cpu().numpy(), C]) for net, C in pairs]

    def _residual_covariances(self) -> list[NDArray[np.float64]]:
        return [_covariance(loadings) for loadings in self._residual_loadings()]

    def _question(self, X: Any, known: Any, n_draws: int) -> tuple[Any, NDArray[np.float64]]:
        """Features as the networks see them, and labels (n, L) with NaN where not known."""
        check_is_fitted(self)
        _check_draws("n_draws", n_draws)
        if not self.multilabel_:
            raise DataError(
                "the model was fitted on a vector y; joint questions need a table of labels"
            )
        labels.refuse_other_order(X, known)
        known = labels.as_pandas(known)
        if isinstance(known, pd.Series):
            known = known.to_frame()
        if not sp.issparse(known):
            known = self._named(known)
        Y = self._read_known_labels(known, allow_missing=True)
        Y = Y.toarray() if hasattr(Y, "toarray") else Y
        x = self._encode(X)
        if len(Y) != x.shape[0]:
            raise DataError(f"X has {x.shape[0]} rows but the labels have {len(Y)}")
        return x, Y.astype(np.float64)

    def _named(self, known: Any) -> pd.DataFrame:
        """Known labels with the columns of the model; those a frame lacks are not known."""
        names = list(self.label_names_)
        if not isinstance(known, pd.DataFrame):
            known = pd.DataFrame(known)
            if known.shape[1] != len(names):
                raise DataError(
                    f"the labels have {known.shape[1]} columns, the model has {len(names)} "
                    "labels; put NaN where a label is not known"
                )
            known.columns = pd.Index(names)
        known = pd.DataFrame(known).rename(columns=str)
        strange = [name for name in known.columns if name not in set(names)]
        if strange:
            raise DataError(
                f"{len(strange)} columns are no labels of the model: {strange[:5]}; "
                "leave them out"
            )
        if known.columns.has_duplicates:
            twice = known.columns[known.columns.duplicated()][0]
            raise DataError(f"several columns are named {twice!r}; keep one of them")
        ordered: pd.DataFrame = known.reindex(columns=names)
        return ordered

    def _bar(self, what: str, n: int) -> Any:
        return counting(what, n, self.verbose > 0 and n > _SHOW_BAR_ABOVE)


def _covariance(loadings: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.eye(len(loadings)) + loadings @ loadings.T)


def _feature_covariance(loadings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covariance that the features bring about; NaN for models of before, which kept none."""
    L, rank = loadings.shape
    return loadings @ loadings.T if rank else np.full((L, L), np.nan)


def _check_draws(name: str, n: object) -> None:
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or not 1 <= n <= MAX_DRAWS:
        raise ConfigError(f"{name} must be an integer from 1 to {MAX_DRAWS}, got {n!r}")
