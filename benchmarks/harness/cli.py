"""The paper's tables and figures, with every rival and the peers users would pick instead.

    python benchmarks/paper.py table1 --quick      one seed, yeast and scene, all methods
    python benchmarks/paper.py all                 everything; resumes where it stopped
    python benchmarks/paper.py peers               the default beside peers, on 18 tables
    python benchmarks/paper.py ingredients         the default with one part left out
    python benchmarks/paper.py page                docs/{reproduction,peers,accuracy}.md

Experiments: table1, table2, figure_pk (the same cells), figure_noise, figure_cov, ablation,
explain (why a rival differs from its published number); `all` is these. peers and ingredients
have their own tables, methods and protocol, see docs/peers.md.
Data sets are the .npz files in $MPVAE_DATA or ../shared/data; yeast falls back to river's.
"""

import argparse
import shutil
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from harness import experiments, ingredients, page, peers, peers_page, runner
from harness.cells import RESULTS, Cell
from harness.datasets import EVERY, SOURCES
from harness.experiments import FIGURE_SEEDS, SEEDS
from harness.methods import METHODS, PEERS
from harness.summary import METRICS, published, summary

QUICK = RESULTS.with_name("quick")
TABLES = {
    "table1": ("example_f1", "micro_f1", "macro_f1"),
    "table2": ("hamming",),
    "figure_pk": (),
}
EXPERIMENTS = (*TABLES, "figure_noise", "figure_cov", "ablation", "explain")


def main() -> None:
    args = _arguments()
    if args.experiment == "page":
        for writer in (page, peers_page, ingredients):
            print(f"wrote {writer.write(args.results)}")
        return
    wanted = EXPERIMENTS if args.experiment == "all" else (args.experiment,)
    cells = list(dict.fromkeys(c for name in wanted for c in _cells(name, args)))
    cells.sort(key=lambda cell: cell.seed)  # a whole table early, its spread later
    if args.fresh:
        shutil.rmtree(args.results, ignore_errors=True)
    how = {
        "peers": {"run": peers.run, "known": peers.without_running},
        "ingredients": {"run": ingredients.run, "known": ingredients.known},
    }.get(args.experiment, {})
    if how:
        how["max_seconds"] = peers.MAX_SECONDS
    try:
        runner.run_all(cells, args.results, workers=args.workers, retry=args.retry, **how)
    except KeyboardInterrupt:
        sys.exit("stopped; what is done is kept, and the same command goes on from there")
    for name in wanted:
        _show(name, args)


def _cells(name: str, args: argparse.Namespace) -> list[Cell]:
    if args.quick:
        return experiments.quick_cells(args.data, args.methods)
    if name == "peers":
        return peers.cells(args.data or peers.DATA, args.methods, args.seeds)
    if name == "ingredients":
        return ingredients.cells(args.data or ingredients.DATA, args.seeds)
    if name in TABLES:
        data = experiments.PK_DATA if name == "figure_pk" and not args.data else args.data
        return experiments.table_cells(data or SOURCES, args.methods, args.seeds)
    if name == "figure_noise":
        seeds = args.figure_seeds
        before = experiments.table_cells(experiments.NOISE_DATA, args.methods, seeds)
        return before + experiments.noise_cells(args.methods, seeds)
    if name == "figure_cov":
        return experiments.covariance_cells(args.figure_seeds)
    if name == "explain":
        return experiments.explanation_cells()
    seeds = args.figure_seeds
    before = experiments.table_cells(experiments.DEFAULT_ABLATIONS, ["mpvae"], seeds)
    return before + experiments.ablation_cells(seeds)


def _show(name: str, args: argparse.Namespace) -> None:
    console = Console()
    if name == "peers":
        _show_peers(console, args)
        return
    if name not in TABLES or name == "figure_pk":
        console.print(f"{name}: done; `python benchmarks/paper.py page` draws it")
        return
    for data in args.data or SOURCES:
        source = SOURCES[data]
        stands = "" if source.same else f" (stands in for {source.paper})"
        table = Table(
            title=f"{data}{stands}", box=box.SIMPLE, title_justify="left", pad_edge=False
        )
        table.add_column("method", no_wrap=True)
        for metric in TABLES[name]:
            table.add_column(f"{METRICS[metric]}\n(paper)", justify="right", no_wrap=True)
        table.add_column("fit\n(s)", justify="right")
        for method in args.methods:
            kind = "quick" if args.quick else "tables"
            found = summary(args.results, kind, data, method, seeds=args.seeds)
            row = [METHODS[method].title]
            for metric in TABLES[name]:
                paper = published(metric, data, method)
                shown = found.text(metric) + (f" ({paper:.4f})" if paper else " " * 8)
                row.append(shown.replace("0.", "."))
            seconds = found.seconds()
            row.append(f"{seconds:.0f}" if seconds is not None else found.reason or "")
            table.add_row(*row)
        console.print(table)
    seeds = "one seed" if len(args.seeds) == 1 else "mean ± sd over seeds"
    console.print(f"Thresholds from validation rows; {seeds}; fit in seconds of one core.")


def _show_peers(console: Console, args: argparse.Namespace) -> None:
    for data in args.data or peers.DATA:
        table = Table(title=data, box=box.SIMPLE, title_justify="left", pad_edge=False)
        table.add_column("method", no_wrap=True)
        for title in (*peers_page.METRICS.values(), "fit (s)"):
            narrow = title.replace("-", "-\n").replace(" ", "\n")
            table.add_column(narrow, justify="right", no_wrap=True)
        for method in args.methods:
            found = summary(args.results, "peers", data, method, seeds=args.seeds)
            shown = [found.text(metric, peers.PROTOCOL) for metric in peers_page.METRICS]
            seconds = found.seconds()
            last = f"{seconds:.1f}" if seconds is not None else found.reason or ""
            if peers.runs_on(method, data):
                table.add_row(PEERS[method].title, *shown, last)
        console.print(table)
    console.print("`python benchmarks/paper.py page` writes docs/peers.md from the results")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "experiment", choices=[*EXPERIMENTS, "all", "peers", "ingredients", "page"]
    )
    parser.add_argument("--quick", action="store_true", help="one seed, yeast and scene")
    parser.add_argument("--data", nargs="+", choices=EVERY, metavar="NAME", help="only these")
    every = METHODS | PEERS
    parser.add_argument(
        "--methods", nargs="+", choices=every, metavar="NAME", help="only these"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        help="how many (3 for the tables, 1 for noise, covariance, ablation)",
    )
    parser.add_argument("--workers", type=int, default=2, help="cells at a time (2)")
    parser.add_argument("--retry", action="store_true", help="run cells that failed again")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results first")
    parser.add_argument("--results", type=Path, help="folder of the cells' JSON files")
    args = parser.parse_args()
    of_peers = args.experiment in ("peers", "ingredients")
    for option, known in (
        ("data", peers.DATA if of_peers else SOURCES),
        ("methods", PEERS if of_peers else METHODS),
    ):
        unknown = [name for name in getattr(args, option) or () if name not in known]
        if unknown:
            parser.error(
                f"{args.experiment} has no {unknown[0]} in its {option}; "
                f"known: {', '.join(known)}"
            )
    args.methods = args.methods or list(PEERS if of_peers else METHODS)
    if args.quick:
        if args.experiment not in ("table1", "table2"):
            parser.error("--quick goes with table1 or table2")
        args.seeds, args.data = 1, args.data or ["yeast", "scene"]
    if args.fresh and args.results is None and not args.quick:
        parser.error("--fresh would delete the stored results; name a folder with --results")
    args.figure_seeds = tuple(range(args.seeds or len(FIGURE_SEEDS)))
    args.seeds = tuple(range(args.seeds or len(SEEDS)))
    args.results = args.results or (QUICK if args.quick else RESULTS)
    return args
