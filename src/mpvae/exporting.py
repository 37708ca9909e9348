"""Command to take a model elsewhere: `mpvae export`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mpvae.config import Metric
from mpvae.estimator import load_model
from mpvae.shell import JsonOption, ModelArgument, app, require, user_errors
from mpvae.terminal import out, plain


@app.command()
@user_errors
def export(
    model_folder: ModelArgument,
    onnx: Annotated[Path, typer.Option("--onnx", help="ONNX file to write (.onnx).")],
    metric: Annotated[
        Metric | None,
        typer.Option(help="Whose thresholds decide about labels; default: the model's metric."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model as one ONNX file, for programs without Python or mpvae.

    The file holds everything from raw features to answers: scaling, missing values, text
    columns, all networks and whoever is asked beside them. It takes `X`, the numeric columns
    in the order of training (float64, NaN where a value is missing), and for every text column
    NAME one more input `X.NAME`, of shape (rows, 1). It gives `probabilities` and `labels` (0
    or 1, by the thresholds of the metric), both of shape (rows, labels). Names, thresholds and
    versions stand in its metadata under the key `mpvae`, as JSON.

    Answers of the joint distribution (given known labels, sets, joint decisions) are not in
    it. Needs the package onnx: `pip install "mpvae[onnx]"`.

    Example: `mpvae export model --onnx model.onnx`
    """
    require("onnx", "onnx")
    from mpvae.export import save_onnx, shapes_of
    from mpvae.export.model import check_onnx_suffix

    check_onnx_suffix(onnx)  # before a large model is read
    size = save_onnx(load_model(model_folder), onnx, metric=metric)
    takes, gives = shapes_of(onnx.read_bytes())
    if as_json:
        print(json.dumps({"file": str(onnx), "bytes": size, "inputs": takes, "outputs": gives}))
        return
    out.print(f"{size / 2**20:.1f} MB -> {plain(onnx)}")
    for name, values in (("takes", takes), ("gives", gives)):
        out.print(f"  {name} {plain(', '.join(f'{k} {v}' for k, v in values.items()))}")
