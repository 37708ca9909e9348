"""Is the covariance that made the data found again?

Labels are drawn from a multivariate probit with known loadings (5,000 rows, 20 labels, 3
factors). Printed for each preset: the correlation, over pairs of labels, between true and
learnt residual correlations; the slope of learnt on true (below 1: shrunk); once for Sigma_g
alone and once for all that z and u imply together, which is what `correlation_` reports; and
the share of the learnt residual variance that z carries.

    python benchmarks/recovery.py [--seeds 3]
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np

from mpvae import MPVAEClassifier
from mpvae.data import simulate_probit


def correlation(covariance):
    sd = np.sqrt(np.diag(covariance))
    return covariance / np.outer(sd, sd)


def run(preset: str, seed: int, n_rows: int, n_labels: int) -> dict:
    data = simulate_probit(n_rows, n_labels=n_labels, seed=seed)
    model = MPVAEClassifier(preset=preset, random_state=seed, verbose=1).fit(data.X, data.Y)
    pairs = np.triu_indices(n_labels, 1)
    true = data.correlation[pairs]
    result = {"preset": preset, "seed": seed, "rows": n_rows, "labels": n_labels}
    for name, learnt in (
        ("sigma_g", correlation(model.sigma_g_)[pairs]),
        ("z_and_u", model.correlation_[pairs]),
    ):
        result[name] = {
            "r": float(np.corrcoef(true, learnt)[0, 1]),
            "slope": float(np.polyfit(true, learnt, 1)[0]),
        }
    residual = np.trace(model.covariance_) - n_labels
    result["share_of_z"] = float(1 - (np.trace(model.sigma_g_) - n_labels) / residual)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--labels", type=int, default=20)
    parser.add_argument("--presets", nargs="+", default=["default"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    runs = []
    print("preset         r(Sigma_g)  slope   r(z and u)  slope   share of z   (bar: r >= .9)")
    for preset in args.presets:
        mine = [run(preset, seed, args.rows, args.labels) for seed in range(args.seeds)]
        runs += mine
        mean = {
            (name, what): statistics.mean(r[name][what] for r in mine)
            for name in ("sigma_g", "z_and_u")
            for what in ("r", "slope")
        }
        share = statistics.mean(r["share_of_z"] for r in mine)
        print(
            f"{preset:13s} {mean['sigma_g', 'r']:10.3f} {mean['sigma_g', 'slope']:7.2f}"
            f" {mean['z_and_u', 'r']:11.3f} {mean['z_and_u', 'slope']:7.2f} {share:11.3f}"
        )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
