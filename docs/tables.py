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


TABLES = {
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
