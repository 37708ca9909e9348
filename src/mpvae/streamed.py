"""A classifier that learns from rows which are never all in memory."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mpvae import members
from mpvae.checkpoints import Kept
from mpvae.checks import check_parameters
from mpvae.chunks import as_table
from mpvae.data.columns import LabelChoice
from mpvae.errors import ConfigError, DataError
from mpvae.features import beside, with_quantiles
from mpvae.kernel_features import fit_kernel_features
from mpvae.learner import Learner
from mpvae.loop import device_named
from mpvae.progress import FitProgress
from mpvae.streaming import Overview, Table, folded, look_over
from mpvae.training import threads_that_pay

_LANDMARKS_OF = 5000  # rows that kernel features are chosen and scaled by
_ENCODED_AT_ONCE = 2**19  # cells: temporary arrays are some times as large


class LearnsFromStreams(Learner):
    """What `fit_stream` adds; all else is the classifier's."""

    def fit_stream(
        self,
        source: Any,
        *,
        labels: LabelChoice = None,
        exclude: Sequence[str] = (),
        checkpoint: str | Path | Kept | None = None,
    ) -> Self:
        """Train on rows that are never all in memory, and choose thresholds.

        One pass over the rows finds what features and labels are like; then every epoch of
        every network is a pass, rows being mixed in a buffer. Nobody else is asked (`base`).

        Parameters
        ----------
        source : path, or callable
            A Parquet file, a folder of such files or a pattern (``"plots/*.parquet"``); or a
            function that returns a new iterator over chunks ``(X, y)`` of some rows each,
            always the same, whenever it is called.
        labels, exclude
            For Parquet: label columns and columns to leave out, as in `mpvae.data.read_table`.
        checkpoint
            As in `fit`.

        Returns
        -------
        MPVAEClassifier
            Itself, fitted.
        """
        check_parameters(self)
        device = device_named(self.device)
        if self.base not in (None, "auto"):
            raise ConfigError(
                f"base is {self.base!r}, but nobody is asked beside the networks where rows "
                "are read as needed; leave base out, or give fewer rows to fit"
            )
        self.__dict__.pop("thresholds_", None)
        with self._keeping(checkpoint) as kept:
            self._fit_stream(as_table(source, labels=labels, exclude=exclude), device, kept)
            if kept is not None and kept is not checkpoint:
                kept.clear()
        return self

    def _fit_stream(self, table: Table, device: str, kept: Kept | None) -> None:
        seed = self._seed()
        with FitProgress(self.verbose > 0) as progress:
            progress.asking("the rows for their statistics")
            seen = look_over(table, seed)
            self._begin(table, seen, seed)
            parts = partial(folded, table, seen, self._encode_chunk, self.settings_, seed)
            checkpoints = self._checkpoints(
                kept, seed, seen.n_rows, seen.positive, seen.observed, seen.digest
            )
            learn, _ = next(iter(parts()))
            with threads_that_pay(learn, self.settings_, reading=1):
                fitted = members.fit_parts(
                    parts,
                    self.settings_,
                    metric=self.metric,
                    seed=seed,
                    device=device,
                    on_epoch=lambda member, record: self._show(progress, member, record),
                    checkpoints=checkpoints,
                )
        self._take(fitted, by_fold=True)

    def _begin(self, table: Table, seen: Overview, seed: int) -> None:
        """Take over what one pass over a table has told: all that comes before networks."""
        n, L = int(seen.n_rows.sum()), len(table.label_names)
        missing = bool((seen.observed.sum(0) < n).any())
        if L == 0:
            raise DataError("no column is a label; say which are, by labels= (--labels)")
        if missing and not self.allow_missing_labels:
            raise DataError(
                "some label cells are empty: not observed; learn from the others with "
                "allow_missing_labels=True (--allow-missing-labels), or fill them"
            )
        if not seen.observed.any():
            raise DataError("no label of any row was observed; nothing can be learnt")
        self.label_names_ = np.array(table.label_names, dtype=object)
        self.classes_, self.multilabel_ = np.arange(L), True
        self.__dict__.pop("feature_names_in_", None)
        if table.named:
            self.feature_names_in_ = np.array(table.feature_names, dtype=object)
        self.n_features_in_ = len(table.feature_names)
        self.features_ = seen.features
        self.settings_ = self._resolve(n, L, missing=missing, sparse=False, validated=False)
        weight = np.ones(len(seen.sample_Y))
        if self.settings_.quantiles:
            self.features_ = with_quantiles(self.features_, seen.sample_X, weight)
        self.evidence_, self.kernel_features_ = [], None
        if self.settings_.kernel_features:
            some = slice(None, None, -(-len(weight) // _LANDMARKS_OF))
            x = self.features_.apply(seen.sample_X.iloc[some])
            n_landmarks = self.settings_.kernel_features
            self.kernel_features_ = fit_kernel_features(x, weight[some], n_landmarks, seed)

    def _encode_chunk(self, X: pd.DataFrame) -> NDArray[np.float32]:
        """Features as the networks see them, of rows that were checked before."""
        kernel = self.kernel_features_
        width = self.features_.n_outputs + (0 if kernel is None else len(kernel.landmarks))
        encoded = np.empty((len(X), width), np.float32)
        size = max(2048, _ENCODED_AT_ONCE // width)
        for start in range(0, len(X), size):
            x = self.features_.apply(X.iloc[start : start + size])
            parts = [] if kernel is None else [kernel.apply(x)]
            encoded[start : start + size] = beside(x, *parts)
        return encoded
