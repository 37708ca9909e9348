"""What every command shares: the application, its options, and how errors are shown."""

import importlib.util
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec

import numpy as np
import typer

from mpvae.config import Preset
from mpvae.errors import MPVAEError
from mpvae.terminal import err, plain

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
Engine = Literal["local", "ray"]
P = ParamSpec("P")

TableArgument = Annotated[
    Path,
    typer.Argument(
        help="CSV, TSV, Parquet (a file, a folder, or a pattern in quotes), ARFF, .npz, .npy, "
        "libsvm or extreme-classification text."
    ),
]
ModelArgument = Annotated[Path, typer.Argument(help="Folder written by `mpvae fit`.")]
MetaOption = Annotated[
    int, typer.Option("--meta-offset", help="For .npy: columns before the labels.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="CSV, Parquet or JSON file; without it CSV is printed."),
]
LabelsOption = Annotated[
    str | None,
    typer.Option(
        "--labels",
        "-l",
        help="Label columns: names or patterns ('species_*,other'), or a count "
        "(14: the last 14 columns, -14: the first). Not needed where the file marks them.",
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", "-x", help="Feature columns to leave out, such as ids."),
]
MissingOption = Annotated[
    bool, typer.Option("--allow-missing-labels", help="Empty label cells mean: not observed.")
]
RowsOption = Annotated[
    str, typer.Option("--rows", help="auto, all, or a split of the file: train, val, test.")
]
PresetOption = Annotated[Preset, typer.Option(help="Where settings not given come from.")]
EngineOption = Annotated[
    Engine,
    typer.Option(
        help="Where the work is done: in this process, or by Ray, on the cluster that "
        "RAY_ADDRESS names or on this machine (`pip install 'mpvae[ray]'`). Predictions by Ray "
        "go to a new folder of Parquet files."
    ),
]
WorkersOption = Annotated[
    int, typer.Option(help="With --engine ray: processes that work side by side.", min=1)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


_NO_MEMORY = "[red]mpvae:[/red] there is not enough memory; give fewer rows, features or labels"


def user_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors about data, files or settings into one line and exit code 2."""

    @wraps(command)
    def shell(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with warnings.catch_warnings():
                # A model of nameless columns may meet a table with names, or the other way.
                warnings.filterwarnings("ignore", "X (has|does not have valid) feature names")
                warnings.showwarning = _one_line
                command(*args, **kwargs)
        except BrokenPipeError:
            raise  # the reader of our output has gone: typer ends without a word
        except MemoryError:
            err.print(_NO_MEMORY)
            raise typer.Exit(2) from None
        except RuntimeError as error:
            if "can't allocate memory" not in str(error):  # as torch says it
                raise
            err.print(_NO_MEMORY)
            raise typer.Exit(2) from None
        except (MPVAEError, ValueError, OSError) as error:
            text = " ".join(str(error).split())
            err.print(f"[red]mpvae:[/red] {plain(text)}")
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            err.print("[yellow]mpvae:[/yellow] interrupted; nothing was written")
            raise typer.Exit(130) from None

    return shell


def require(package: str, extra: str, named: str | None = None) -> None:
    """Say what to install where a command needs a package that is not there."""
    if importlib.util.find_spec(package) is None:
        what = named or f"mpvae[{extra}]"
        raise MPVAEError(f'{package} is not installed; run: pip install "{what}"')


def _one_line(message: Warning | str, *_: Any, **__: Any) -> None:
    err.print(f"[yellow]mpvae:[/yellow] {plain(' '.join(str(message).split()))}")


def json_numbers(values: dict[str, float]) -> dict[str, float | None]:
    """Scores as JSON has them: null where a score is not defined."""
    return {name: value if np.isfinite(value) else None for name, value in values.items()}
