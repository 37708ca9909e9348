"""Commands to look at a model: the report, and the service with its label explorer."""

import json
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from mpvae.choosing import choose_rows, read_for
from mpvae.errors import ConfigError
from mpvae.estimator import load_model
from mpvae.progress import counting, waiting
from mpvae.shell import (
    JsonOption,
    MetaOption,
    ModelArgument,
    RowsOption,
    app,
    require,
    user_errors,
)
from mpvae.terminal import err, out, plain

_EXAMPLES, _CELLS = 1000, 10**5  # rows of a table that the explorer offers, and their cells
DataOption = Annotated[
    Path | None,
    typer.Option("--data", "-d", help="Table with the features, as the model was trained on."),
]


@app.command()
@user_errors
def report(
    model_folder: ModelArgument,
    data: DataOption = None,
    file: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Also write each figure as PNG and SVG into this folder (needs the package "
            "kaleido and a Chrome or Chromium)."
        ),
    ] = None,
    unseen: Annotated[
        bool,
        typer.Option(
            "--unseen", help="The rows of --data are new to the model: score it there."
        ),
    ] = False,
    meta_offset: MetaOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Write a page that explains a model: one HTML file, to open or to send.

    With --data, a table that holds the labels too, the page has scores beside a forest's. On a
    file with an official split they are of its test rows. Otherwise a model with the same
    settings learns from four fifths of the rows and is scored on the others, since the model
    itself may have seen them all; with --unseen it has not, and is scored on every row.

    Example: `mpvae report model --data sites.csv --out report.html`
    """
    require("plotly", "report")
    from mpvae.report import make_report

    if file.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {file}: a report is an HTML file; use a name that ends so")
    if unseen and data is None:
        raise ConfigError("--unseen tells of the rows of --data; give --data too")
    if figures is not None:
        require("kaleido", "report", "kaleido")
    model = load_model(model_folder)
    table = None if data is None else read_for(model, data, meta_offset, with_labels=True)
    name = model_folder.resolve().name
    with waiting("reading", not as_json) as on_step:
        made = make_report(model, table, name=name, unseen=unseen, on_step=on_step)
        made.save(file)
    if figures is not None:
        with counting("figures", 2 * len(made.sections), not as_json) as bar:
            made.save_figures(figures, lambda _: bar.advance(bar.task_ids[0]))
    if as_json:
        sections = [section.key for section in made.sections]
        print(
            json.dumps({"file": str(file), "bytes": file.stat().st_size, "figures": sections})
        )
    else:
        size = file.stat().st_size / 2**20
        out.print(f"{len(made.sections)} figures, {size:.1f} MB -> {plain(file)}")


@app.command()
@user_errors
def serve(
    model_folder: ModelArgument,
    port: Annotated[int, typer.Option(help="Where to listen.", min=0, max=65535)] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is this machine alone.")
    ] = "127.0.0.1",
    data: DataOption = None,
    rows: RowsOption = "all",
    meta_offset: MetaOption = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with a token that all who ask must send; MPVAE_TOKEN in the "
            "environment does the same."
        ),
    ] = None,
    log: Annotated[
        bool, typer.Option("--log", help="A line of JSON on stderr for every request.")
    ] = False,
) -> None:
    """Answer questions over HTTP, and show the label explorer in a browser.

    The page at / shows the probability of every label for a row; click labels to mark them as
    seen or not seen, and watch the others move. Programs use /predict, /conditional, /joint and
    /associations; /docs explains them. Rows of --data can be chosen on the page. SIGTERM or
    Ctrl-C ends it, once what was accepted is answered.

    Example: `mpvae serve model --data new_sites.csv --port 8000`
    """
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        require(name, "serve")
    from mpvae.serve import LOCAL_NAMES, bind, is_local, make_app, read_token, run

    token = read_token(token_file)
    model = load_model(model_folder)
    examples = None
    if data is not None:
        chosen, _ = choose_rows(read_for(model, data, meta_offset), rows, "all")
        most = min(len(chosen), _EXAMPLES, max(1, _CELLS // len(chosen.feature_names)))
        if most < len(chosen):
            err.print(f"{plain(chosen.name)}: the page offers the first {most} rows")
        some = chosen.rows(range(most)).features()
        dense = some if isinstance(some, pd.DataFrame) else some.toarray()
        examples = pd.DataFrame(dense, columns=list(chosen.feature_names))
    listening = bind(host, port)
    service = make_app(
        model,
        name=model_folder.resolve().name,
        examples=examples,
        token=token,
        hosts=(*LOCAL_NAMES, host) if token is None and is_local(host) else None,
        log=sys.stderr if log else None,
    )
    if token is None and not is_local(host):
        err.print(
            f"[yellow]mpvae:[/yellow] whoever reaches {plain(host)} can ask; set MPVAE_TOKEN "
            "or give --token-file"
        )
    shown = f"[{host}]" if ":" in host else host
    where = plain(f"http://{shown}:{listening.getsockname()[1]}")
    told = f"Label explorer at {where}, questions explained at {where}/docs; Ctrl-C ends it"
    run(service, listening, on_ready=lambda: err.print(told))
