"""Write the measured tables into README.md and docs/ from benchmarks/results: make tables.

Each table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

import json
import re
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
METRICS = ("example_f1", "micro_f1", "macro_f1", "hamming")
HEAD = "| | example-F1 | micro-F1 | macro-F1 | Hamming accuracy |"
PUBLISHED = {  # Bai, Kong and Gomes (2020), Tables 1 and 2, column MPVAE
    "yeast": (0.6479, 0.6554, 0.4817, 0.7920),
    "scene": (0.7505, 0.7422, 0.7504, 0.9094),
}
CHOICES = {  # file -> what was changed
    "default": "**the default**",
    "networks": "its networks alone (`base=None, kernel_features=0`)",
    "one_network": "one such network instead of five (`n_members=1`)",
    "ranking_heavy": "such networks, the paper's weights (`lambda_ce=0.5, lambda_rank=10`)",
    "z_averaged": "such networks, z averaged over 16 codes (`z_draws=16`)",
    "paper": "preset `paper`",
    "authors_code": "preset `authors_code`",
    "forest": "a random forest (300 trees, out-of-bag thresholds)",
}


def runs(name: str, data: str) -> list[dict]:
    file = RESULTS / f"accuracy_{name}.json"
    return (
        [r for r in json.loads(file.read_text()) if r["data"] == data] if file.exists() else []
    )


def cell(mine: list[dict], metric: str) -> str:
    values = [r["scores"][metric] for r in mine]
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


def row(title: str, cells: list[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |"


def accuracy() -> list[str]:
    lines = [HEAD, "|---|---|---|---|---|"]
    for data, published in PUBLISHED.items():
        lines.append(row(data, [cell(runs("default", data), m) for m in METRICS]))
        lines.append(row(f"{data}, published MPVAE", [f"{p:.4f}" for p in published]))
    return lines


def choices() -> list[str]:
    lines = []
    for data in PUBLISHED:
        lines += [
            f"{data} ({len(runs('default', data))} seeds):",
            "",
            HEAD + " log-loss |",
            "|---|---|---|---|---|---|",
        ]
        for name, title in CHOICES.items():
            mine = runs(name, data)
            if mine:
                losses = f"{statistics.mean(r['log_loss'] for r in mine):.4f}"
                lines.append(row(title, [*(cell(mine, m) for m in METRICS), losses]))
        lines.append("")
    return lines


def speed() -> list[str]:
    steps = json.loads((RESULTS / "speed.json").read_text())
    lines = [
        "| labels | a step against the plain formulas | a step against the floor | "
        "predicting 1,000 rows against 10,000 draws |",
        "|---|---|---|---|",
    ]
    default = [r for r in steps["prediction"] if r["networks"] == "default"]
    for step, predict in zip(steps["step"], default, strict=True):
        lines.append(
            f"| {step['labels']} | {step['faster_than_plain']:.0f}x faster "
            f"| {step['times_the_floor']:.2f}x its time "
            f"| {predict['faster_than_plain']:.0f}x faster |"
        )
    return lines


def recovery() -> list[str]:
    lines = [
        "| preset | r, Sigma_g | slope | r, z and u (`correlation_`) | slope | share of z |",
        "|---|---|---|---|---|---|",
    ]
    everything = json.loads((RESULTS / "recovery.json").read_text())
    for preset in dict.fromkeys(r["preset"] for r in everything):
        mine = [r for r in everything if r["preset"] == preset]
        numbers = [
            statistics.mean(r[part][what] for r in mine)
            for part in ("sigma_g", "z_and_u")
            for what in ("r", "slope")
        ]
        share = statistics.mean(r["share_of_z"] for r in mine)
        lines.append(row(f"`{preset}`", [*(f"{x:.2f}" for x in numbers), f"{share:.1%}"]))
    return lines


def peers() -> list[str]:
    """Mean ranks as docs/peers.md has them."""
    page = (ROOT / "docs" / "peers.md").read_text().split("## Mean rank\n")[1]
    return [line for line in page.split("\n## ")[0].splitlines() if line.startswith("|")]


def steps() -> list[str]:
    found = json.loads((RESULTS / "speed.json").read_text())["step"]
    lines = [
        "| labels | floor | 100 draws | against the floor | faster than plain | "
        "64 draws, against the floor |",
        "|---|---|---|---|---|---|",
    ]
    for r in found:
        lines.append(
            row(
                str(r["labels"]),
                [
                    f"{r['floor_ms']:.1f} ms",
                    f"{r['ours_ms']:.1f} ms",
                    f"{r['times_the_floor']:.2f}x",
                    f"{r['faster_than_plain']:.0f}x",
                    f"{r['fewer_times_the_floor']:.2f}x",
                ],
            )
        )
    return lines


def variance() -> list[str]:
    found = json.loads((RESULTS / "speed.json").read_text())["variance"]
    lines = [
        "| labels | epochs | draws | networks (between batches) | loadings (between batches) |",
        "|---|---|---|---|---|",
    ]
    for r in found:
        cells = [
            f"{r[part]:.2f} ({r[f'{part}_between_batches']:.1f})"
            for part in ("networks", "loadings")
        ]
        lines.append(row(str(r["labels"]), [str(r["epochs"]), r["draws"], *cells]))
    return lines


def scale() -> dict:
    return json.loads((RESULTS / "scale.json").read_text())


def growth() -> list[str]:
    lines = ["| | | time of a step | memory |", "|---|---|---|---|"]
    for name in ("labels", "draws"):
        found = scale()[name]
        for size, run in zip(found["sizes"], found["runs"], strict=True):
            cells = [f"{1e3 * run['seconds']:.1f} ms", f"{run['memory']:.0f} MB"]
            lines.append(row(name, [f"{size:,}", *cells]))
        cells = [f"{found['seconds_exponent']:.2f}", f"{found['memory_exponent']:.2f}"]
        lines.append(row(f"**exponent in {name}**", ["", *cells]))
    return lines


def rows() -> list[str]:
    found = scale()["rows"]
    lines = ["| rows | time | memory |", "|---|---|---|"]
    for size, run in zip(found["sizes"], found["runs"], strict=True):
        seconds = run["seconds"] * size
        lines.append(row(f"{size:,}", [f"{seconds:.1f} s", f"{run['memory']:.0f} MB"]))
    cells = [f"{found['total_exponent']:.2f}", f"{found['memory_exponent']:.3f}"]
    return [*lines, row("**exponent**", cells)]


def extreme() -> list[str]:
    found = scale()["extreme"]
    return [
        "| rows learnt per second | rows answered per second | memory | precision@5 | "
        "best possible | among 100 labels | logistic, among these |",
        "|---|---|---|---|---|---|---|",
        row(
            f"{found['fit_rows_per_second']:,.0f}",
            [
                f"{found['predict_rows_per_second']:,.0f}",
                f"{found['memory'] / 1024:.1f} GB",
                f"{found['precision_at_5']:.3f}",
                f"{found['best_possible_precision_at_5']:.3f}",
                f"{found['precision_at_5_of_100_labels']:.3f}",
                f"{found['logistic_precision_at_5_of_100_labels']:.3f}",
            ],
        ),
    ]


def imdb() -> list[str]:
    found = scale()["imdb"]
    lines = [
        "| | time | memory | micro-F1 | error over rows | spread between seeds |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("memory", "streamed"):
        run = found[name]
        cells = [f"{run['seconds']:.0f} s", f"{run['memory'] / 1024:.1f} GB"]
        scores = ("micro_f1", "micro_f1_error", "micro_f1_spread")
        cells += [f"{run[score]:.4f}" for score in scores]
        lines.append(row("in memory" if name == "memory" else name, cells))
    return [*lines, row("ratio", [f"{found['ratio']:.2f}", "", "", "", ""])]


def processes() -> list[str]:
    lines = [
        "| batch | speed of two | loss of one, last epoch | of two | largest distance |",
        "|---|---|---|---|---|",
    ]
    for batch, r in scale()["processes"].items():
        off = max(map(abs, r["off_in_spreads"]))
        lines.append(
            row(
                batch,
                [
                    f"{r['speedup']:.2f}x",
                    f"{r['losses_alone'][-1]:.4f} ± {r['spread'][-1]:.4f}",
                    f"{r['losses_two'][-1]:.4f}",
                    f"{off:.1f} spreads between seeds",
                ],
            )
        )
    return lines


def lost() -> list[str]:
    found = scale()["lost"]
    lines = ["| | time | micro-F1 on held-out rows |", "|---|---|---|"]
    for name in ("undisturbed", "killed"):
        run = found[name]
        lines.append(row(name, [f"{run['seconds']:.0f} s", f"{run['scores']['micro_f1']:.6f}"]))
    equal = "equal, bit for bit" if found["equal"] else "not equal"
    return [*lines, row("weights", ["", equal])]


def look() -> list[str]:
    found = json.loads((RESULTS / "look.json").read_text())
    page, click = found["delicious"], found["explorer"]
    return [
        "| | |",
        "|---|---|",
        row(f"report of {page['labels']} labels: size", [f"{page['megabytes']:.1f} MB"]),
        row("opens in Chromium in", [f"{page['seconds_to_open']:.1f} s"]),
        row("its heat map is drawn in", [f"{page['seconds_to_heat_map']:.1f} s"]),
        row(
            f"explorer, {click['labels']} labels: from a click to the bars",
            [f"{1e3 * click['click_seconds']:.0f} ms (median of 30)"],
        ),
        row("of which the service takes", [f"{1e3 * click['answer_seconds']:.0f} ms"]),
    ]


def load() -> list[str]:
    found = json.loads((RESULTS / "load.json").read_text())
    lines = [
        "| | questions per second | answered | refused (503) | wrong or lost | p50 | p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, run, rate in (
        ("as many as it can answer", found["alone"], found["capacity"]),
        ("more than ten times that", found["loaded"], found["loaded"]["rate"]),
    ):
        cells = [f"{rate:.0f}", f"{run['200']:,}", f"{run['503']:,}"]
        cells.append(str(run["wrong"] + run["lost"] + run["other"]))
        lines.append(row(name, [*cells, *(f"{1e3 * run[p]:.0f} ms" for p in ("p50", "p99"))]))
    begin, middle, end = found["memory"]
    stop = found["stopped"]
    return [
        *lines,
        "",
        f"Memory at the begin, in the middle and at the end: {begin:.0f}, {middle:.0f} and "
        f"{end:.0f} MB. A question is answered as before {found['recovery']:.2f} s after the "
        f"load ends. Told to stop under that load, it left {stop['left_open']} of "
        f"{stop['accepted']} accepted requests without an answer.",
    ]


def fuzz() -> list[str]:
    found = json.loads((RESULTS / "fuzz.json").read_text())
    titles = ("reader", "inputs", "read", "refused", "slowest", "most memory", "finds")
    lines = [f"| {' | '.join(titles)} |", "|---|---|---|---|---|---|---|"]
    for name, run in found.items():
        cells = [f"{run['inputs']:,}", f"{run['accepted']:,}"]
        cells += [f"{sum(run['refused'].values()):,}", f"{run['most_seconds']:.2f} s"]
        cells += [f"{run['most_megabytes']:.0f} MB", str(len(run["finds"]))]
        lines.append(row(name, cells))
    return lines


def export() -> list[str]:
    lines = [
        "| | features, labels | file | model folder | largest difference | other decisions | "
        "1 row | 1,000 rows |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in json.loads((RESULTS / "export.json").read_text())["runs"]:
        cells = [
            f"{r['features']}, {r['labels']}",
            f"{r['megabytes']:.1f} MB",
            f"{r['folder_megabytes']:.1f} MB",
            f"{r['largest_difference']:.0e}",
            f"{r['other_decisions']} of {r['decisions']:,}",
        ]
        cells += [f"{r[size]['times_mpvae']:.2f}x" for size in ("rows_1", "rows_1000")]
        lines.append(row(r["data"], cells))
    return lines


TABLES = {
    "look": look,
    "load": load,
    "fuzz": fuzz,
    "export": export,
    "steps": steps,
    "variance": variance,
    "growth": growth,
    "rows": rows,
    "extreme": extreme,
    "imdb": imdb,
    "processes": processes,
    "lost": lost,
    "accuracy": accuracy,
    "peers": peers,
    "choices": choices,
    "speed": speed,
    "recovery": recovery,
}


def main() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = document.read_text()
        for name, table in TABLES.items():
            place = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
            if place.search(text):
                body = "\n".join(table()).strip()
                text = place.sub(lambda m, body=body: f"{m[1]}{body}\n{m[2]}", text)
        document.write_text(text)


if __name__ == "__main__":
    main()
