"""Look at a model: figures (Plotly) and a report, one HTML file that opens offline.

Needs the extra ``report``: ``pip install "mpvae[report]"``.
"""

from mpvae.report.judging import Judged, judge
from mpvae.report.model_figures import (
    associations_figure,
    correlation_figure,
    label_map_figure,
    latent_figure,
    training_figure,
)
from mpvae.report.page import Report, make_report
from mpvae.report.score_figures import (
    moved_figure,
    precision_figure,
    reliability_figure,
    scores_figure,
)

__all__ = [
    "Judged",
    "Report",
    "associations_figure",
    "correlation_figure",
    "judge",
    "label_map_figure",
    "latent_figure",
    "make_report",
    "moved_figure",
    "precision_figure",
    "reliability_figure",
    "scores_figure",
    "training_figure",
]
