"""A report: one HTML file with everything in it, that opens without a network."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from mpvae.config import setting_docs
from mpvae.data import LabelledTable
from mpvae.estimator import MPVAEClassifier
from mpvae.evidence import source_names
from mpvae.report import model_figures, score_figures
from mpvae.report.judging import FOREST, Judged, examples, judge
from mpvae.version import __version__
from mpvae.writing import records, replacing

_PAIRS = 200  # rows of the table of associations


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A figure with what to say about it."""

    key: str
    short: str  # for a list of all
    title: str
    text: str
    figure: go.Figure


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """Everything a report shows, before it is a page."""

    name: str
    facts: list[tuple[str, str]]
    sections: list[Section]
    labels: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    settings: list[tuple[str, str, str]]

    def save(self, file: str | Path) -> None:
        """Write the page, whole or not at all."""
        with replacing(Path(file)) as partial:
            partial.write_text(self.html(), encoding="utf-8")

    def html(self) -> str:
        """The page."""
        environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(_asset),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
        )
        environment.filters["script"] = _in_script
        return environment.get_template("report.html").render(
            report=self,
            version=__version__,
            style=_asset("report.css"),
            script=_asset("report.js"),
            plotly=get_plotlyjs(),
            figures={section.key: packed(section.figure) for section in self.sections},
        )

    def save_figures(
        self, folder: Path, on_file: Callable[[Path], None] = lambda _: None
    ) -> None:
        """Each figure as PNG and SVG; needs kaleido and a Chrome or Chromium."""
        folder.mkdir(parents=True, exist_ok=True)
        for section in self.sections:
            for kind in ("png", "svg"):
                still = go.Figure(section.figure).update_layout(
                    paper_bgcolor="white",
                    plot_bgcolor="white",
                    title={"text": section.title, "x": 0.01},
                    margin={"t": 70, "l": 60, "b": 60, "r": 20},
                )
                file = folder / f"{section.key}.{kind}"
                still.write_image(file, width=1000, scale=2 if kind == "png" else 1)
                on_file(file)


def make_report(
    model: MPVAEClassifier,
    table: LabelledTable | None = None,
    *,
    name: str = "model",
    unseen: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> Report:
    """Look at a model, and judge it on the rows of a table if there is one.

    Parameters
    ----------
    model : MPVAEClassifier
        Fitted.
    table : LabelledTable, optional
        Rows with labels; see `mpvae.report.judging.judge` for which of them are used how.
    name : str
        Title of the page.
    unseen : bool
        Whether the rows of the table are new to the model.
    on_step : callable
        Told what is being done.
    """
    judged = None if table is None else judge(model, table, unseen=unseen, on_step=on_step)
    on_step("drawing figures")
    sections = [*_of_scores(judged), *_of_model(model), *_of_rows(model, judged)]
    labels = (
        pd.DataFrame({"label": list(map(str, model.label_names_))})
        if judged is None
        else judged.by_label()
    )
    labels["threshold"] = np.broadcast_to(model.thresholds_["macro_f1"], len(labels))
    labels["group"] = model.label_groups().to_numpy() + 1
    many = len(labels) > 1
    pairs = model.associations(top=_PAIRS) if many else pd.DataFrame()
    settings = [
        (n, str(getattr(model.settings_, n)), text) for n, text in setting_docs().items()
    ]
    return Report(
        name,
        list(_facts(model, table, judged)),
        sections,
        records(labels),
        records(pairs),
        settings,
    )


def _facts(
    model: MPVAEClassifier, table: LabelledTable | None, judged: Judged | None
) -> Iterator[tuple[str, str]]:
    yield "Labels", f"{len(model.label_names_):,}"
    yield "Features", f"{model.n_features_in_:,}"
    yield "Networks", f"{len(model.networks_)}, of up to {model.n_epochs_} epochs"
    yield "Evidence beside them", ", ".join(source_names(model.evidence_)) or "none"
    yield "Preset, metric", f"{model.preset}, {model.metric}"
    if table is not None and table.Y is not None:
        per_row = float(table.Y.sum() / len(table))
        yield "Table", f"{table.name}: {len(table):,} rows, {per_row:.2f} labels a row"
    if judged is not None:
        yield "Judged on", judged.how


def _of_scores(judged: Judged | None) -> Iterator[Section]:
    if judged is None:
        return
    beside, its_own = "", ""
    if FOREST in judged.P:
        beside, its_own = (
            " beside a random forest's",
            ", for the forest from rows out of its bags",
        )
    yield Section(
        "scores",
        "Scores",
        f"Scores{beside}",
        f"On {judged.how}. Higher is better; intervals are over rows (bootstrap). Thresholds "
        f"come from rows held out of training{its_own}.",
        score_figures.scores_figure(judged.scores()),
    )


def _of_model(model: MPVAEClassifier) -> Iterator[Section]:
    L = len(model.label_names_)
    yield Section(
        "training",
        "Training",
        "Training",
        "Every term of the loss and the score on held-out rows, after each epoch.",
        model_figures.training_figure(model),
    )
    if L < 2:
        return
    few = (
        ""
        if L <= model_figures.MAX_HEAT_LABELS
        else (f" Of {L:,} labels the {model_figures.MAX_HEAT_LABELS:,} in the strongest pairs.")
    )
    yield Section(
        "correlation",
        "Correlations",
        "Which labels go together, given the features",
        "Residual correlation: what the features leave unexplained. Labels that go together "
        "stand beside "
        "each other; drag to zoom, double-click to go back." + few,
        model_figures.correlation_figure(model),
    )
    yield Section(
        "label-map",
        "Map",
        "Map of the labels",
        "Labels near each other go with the same other labels; distances between far points "
        "mean little (t-SNE of the rows of the covariance's Cholesky factor). Colour and "
        "shape: groups by clustering of the correlations.",
        model_figures.label_map_figure(model),
    )
    yield Section(
        "associations",
        "Associations",
        "Strongest associations",
        "Residual correlation with its interval, and the raw one, in which the model counts "
        "what the features bring about too. Where the two differ, features explain part of "
        "why the labels are found together. Neither says that one label causes the other.",
        model_figures.associations_figure(model),
    )


def _of_rows(model: MPVAEClassifier, judged: Judged | None) -> Iterator[Section]:
    if judged is None:
        return
    yield Section(
        "reliability",
        "Reliability",
        "Can the probabilities be believed?",
        "Of all predictions with about the same probability, the share in which the label is "
        "present; bars are 95 % intervals.",
        score_figures.reliability_figure(judged.Y, judged.P),
    )
    if judged.Y.shape[1] > 1:
        yield Section(
            "precision",
            "Precision",
            "The K most probable labels",
            "How many of them are right, on average over rows.",
            score_figures.precision_figure(judged.Y, judged.P),
        )
    for k, example in enumerate(examples(judged)):
        yield Section(
            f"example-{k + 1}",
            f"Example {k + 1}",
            f"Row {example.row + 1}: what if {example.known} is known to be present?",
            "The labels it moves most, for a row of the table that was judged on.",
            score_figures.moved_figure(
                list(map(str, judged.model.label_names_)),
                example.before,
                example.after,
                example.known,
            ),
        )
    yield Section(
        "latent",
        "Latent dimensions",
        "What the latent dimensions do",
        "Change of each label's probability when one dimension of the code goes from a "
        "standard deviation below "
        "its mean to one above, on average over rows (first network). A dimension that moves "
        "few labels "
        "together has found something of its own.",
        model_figures.latent_figure(model, judged.X),
    )


def packed(figure: go.Figure) -> dict[str, Any]:
    """A figure for the page: heat maps in hundredths, a byte for each number."""
    small = go.Figure(figure)
    for trace in small.data:
        if trace.type == "heatmap":
            z = np.asarray(trace.z, float)
            scale = float(np.nanmax(np.abs(z))) / 127 or 1.0
            trace.z = np.where(np.isnan(z), -128, np.rint(z / scale)).astype(np.int8)
            trace.meta = {"scale": scale}
    found: dict[str, Any] = json.loads(small.to_json())
    return found


def _asset(name: str) -> str:
    return (files("mpvae.report") / "assets" / name).read_text(encoding="utf-8")


def _in_script(value: Any) -> Markup:
    """JSON that may stand inside a script element, whatever the names in it are."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)
