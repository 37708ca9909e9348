"""Command to see what there is in a minute: `mpvae demo`."""

import importlib.util
import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mpvae import metrics
from mpvae.config import Metric
from mpvae.data import LabelledTable, load_yeast
from mpvae.estimator import MPVAEClassifier
from mpvae.model_file import refuse_foreign
from mpvae.progress import waiting
from mpvae.shell import JsonOption, app, user_errors
from mpvae.terminal import out, plain, print_pairs, title

# Bai, Kong and Gomes (IJCAI 2020), Tables 1 and 2, column MPVAE, row yeast.
PAPER_YEAST: dict[Metric, float] = {
    "example_f1": 0.6479,
    "micro_f1": 0.6554,
    "macro_f1": 0.4817,
    "hamming": 0.7920,
}


@app.command()
@user_errors
def demo(
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="Where to save the model.")
    ] = Path("demo/yeast-model"),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Train on the paper's yeast data (official split) and compare with its scores.

    Needs the small package `river`, which carries the data: `pip install "mpvae[demo]"`. With
    the extra `report`, a page to look at is written beside the model.
    """
    data = load_yeast()
    train, test = data.split("train"), data.split("test")
    refuse_foreign(folder)
    if not as_json:
        out.print(
            f"[b]yeast[/b]: {len(train)} training and {len(test)} test rows, "
            f"{train.X.shape[1]} features, {len(train.label_names)} labels (gene functions)"
        )
    start = time.perf_counter()
    model = MPVAEClassifier(random_state=seed, verbose=int(not as_json))
    model.fit(train.features(), train.labels())
    took = time.perf_counter() - start
    Y = test.labels().to_numpy()
    scores = {
        name: metrics.DECISION_METRICS[name](Y, model.predict(test.features(), metric=name))
        for name in PAPER_YEAST
    }
    model.save(folder)
    page = _demo_report(model, data, folder, not as_json)
    if as_json:
        summary = {
            "folder": str(folder),
            "report": page and str(page),
            "seconds": round(took, 2),
        }
        print(json.dumps(summary | {"scores": scores, "published": PAPER_YEAST}))
        return
    out.print(f"{len(model.networks_)} networks trained in {took:.0f} s\n")
    table = Table("on the test rows", "mpvae", "published MPVAE", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, published in PAPER_YEAST.items():
        table.add_row(title(name), f"{scores[name]:.4f}", f"{published:.4f}")
    out.print(table)
    out.print("Thresholds come from training rows only (the paper's: validation rows).\n")
    print_pairs(model, 4)
    place = plain(folder)
    out.print(f"\nModel saved in {place}; look at it with: mpvae info {place}")
    if page is not None:
        out.print(f"Report: {plain(page)}; the label explorer: mpvae serve {place}")


def _demo_report(
    model: MPVAEClassifier, data: LabelledTable, folder: Path, show: bool
) -> Path | None:
    """The report beside the model folder, where Plotly is installed."""
    if importlib.util.find_spec("plotly") is None:
        return None
    from mpvae.report import make_report

    file = folder.with_name(f"{folder.name}-report.html")
    with waiting("report", show) as on_step:
        make_report(model, data, name="yeast", on_step=on_step).save(file)
    return file
