"""What learning needs whether rows are in memory or read as needed: settings, seed, results."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from mpvae import members
from mpvae.checkpoints import Checkpoints, Kept, keeping, question_of
from mpvae.config import DataShape, Metric, Objective, Preset, Settings, setting_docs
from mpvae.errors import ConfigError
from mpvae.evidence import Source, evidence_of
from mpvae.features import Matrix, beside
from mpvae.judging import judge
from mpvae.kernel_features import KernelFeatures
from mpvae.loop import EpochRecord
from mpvae.presets import resolve
from mpvae.progress import FitProgress
from mpvae.questions import JointQuestions
from mpvae.version import __version__


class Learner(JointQuestions):
    """A classifier that has settings, trains members and takes over what they have learnt."""

    preset: Preset
    base: Any
    objective: Objective
    metric: Metric
    recalibrate: bool
    device: str
    random_state: Any
    allow_missing_labels: bool
    evidence_: Sequence[Source]
    kernel_features_: KernelFeatures | None

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _resolve(
        self, n: int, n_labels: int, *, missing: bool, sparse: bool, validated: bool
    ) -> Settings:
        given = {name: getattr(self, name) for name in setting_docs()}
        shape = DataShape(n, self.features_.n_outputs, n_labels, sparse)
        settings = resolve(self.preset, given, shape, self.objective)
        if missing and settings.hide_labels == 0 and settings.label_branch:
            if given["hide_labels"] != "auto":
                raise ConfigError(
                    "hide_labels is 0, but y holds NaN: the label encoder has to be told which "
                    "labels are known; set hide_labels above 0, or leave it at 'auto'"
                )
            given["hide_labels"] = 0.5
            settings = resolve(self.preset, given, shape, self.objective)
        if not validated and settings.n_members > max(1, n // 2):
            given["n_members"] = max(1, n // 2)  # a fold needs rows
            settings = resolve(self.preset, given, shape, self.objective)
        return settings

    def _encode(self, X: Any) -> Matrix:
        x = super()._encode(X)
        parts = [] if self.kernel_features_ is None else [self.kernel_features_.apply(x)]
        if self.evidence_:
            parts.append(evidence_of(self.evidence_, x))
        return beside(x, *parts)

    def _keeping(self, folder: str | Path | Kept | None) -> AbstractContextManager[Kept | None]:
        """The folder for the state of a training; what could not be taken up is refused."""
        if folder is None:
            return nullcontext()
        if isinstance(folder, Kept):
            folder.folder.mkdir(parents=True, exist_ok=True)
            return nullcontext(folder)
        if not isinstance(folder, str | Path):
            raise ConfigError(f"checkpoint must be a folder, got {folder!r}")
        if not isinstance(self.random_state, int | np.integer):
            raise ConfigError(
                "a checkpoint is taken up by the same training alone: give random_state an "
                f"integer, such as 0, not {self.random_state!r}"
            )
        if Path(folder).exists() and not Path(folder).is_dir():
            raise ConfigError(f"checkpoint {folder} is a file; give a folder")
        return keeping(Path(folder))

    def _checkpoints(
        self, kept: Kept | None, seed: int, *data: Matrix | NDArray[Any] | None
    ) -> Checkpoints | None:
        """The state of a training on this data, if it is kept."""
        if kept is None:
            return None
        names = (list(self.label_names_), list(getattr(self, "feature_names_in_", ())))
        several = self.base if isinstance(self.base, list | tuple) else [self.base]
        base = [one if isinstance(one, str) else type(one).__name__ for one in several]
        asked = (self.settings_, self.metric, self.preset, base, seed, names, __version__)
        return Checkpoints(kept, question_of(asked, data))

    def _take(self, fitted: members.Members, *, by_fold: bool) -> None:
        """Take over trained networks, and what held-out rows say of them."""
        if self.recalibrate:
            fitted = members.recalibrate(fitted)
        self.members_by_fold_ = by_fold and self.settings_.n_members > 1
        self.networks_ = fitted.networks
        if fitted.worth is not None:
            pairs = zip(self.evidence_, fitted.worth, strict=True)
            self.evidence_ = [source.weighted(worth) for source, worth in pairs]
        self.code_loadings_ = [loadings.cpu().numpy() for loadings in fitted.code_loadings]
        self.feature_loadings_ = [F.cpu().numpy() for F in fitted.feature_loadings]
        self.history_ = pd.DataFrame(fitted.history)
        self.n_epochs_ = int(self.history_["epoch"].max())
        made = judge(fitted.held_out, self.settings_)
        self.rules_, self.calibration_ = made.rules, made.calibration
        self.validation_scores_ = made.scores
        self.thresholds_ = made.thresholds
        if fitted.interrupted:
            raise KeyboardInterrupt("fit was interrupted; the model holds the best so far")

    def _show(self, progress: FitProgress, member: int, record: EpochRecord) -> None:
        scores = f"loss {record.terms['total']:.3f}"
        if record.val_metric is not None:
            scores += f"  validation {record.metric} {record.val_metric:.4f}"
        progress.update(
            member=member,
            n_members=self.settings_.n_members,
            epoch=record.epoch,
            max_epochs=self.settings_.max_epochs,
            scores=scores,
        )
