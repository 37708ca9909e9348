"""Draw the pictures of the README from models trained here and now: make figures."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage

from mpvae import MPVAEClassifier
from mpvae.data import load_yeast
from mpvae.demo import PAPER_YEAST
from mpvae.metrics import DECISION_METRICS

mpl.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent / "images"
TITLES = {
    "example_f1": "example F1",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "hamming": "Hamming accuracy",
}


def main() -> None:
    data = load_yeast()
    train, test = data.split("train"), data.split("test")
    models = [
        MPVAEClassifier(random_state=s, verbose=1).fit(train.features(), train.labels())
        for s in range(3)
    ]
    Y = test.labels().to_numpy()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.4), width_ratios=(1, 1.15), layout="constrained"
    )
    draw_scores(left, models, test.features(), Y)
    draw_correlation(right, models[0])
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / "yeast.png", dpi=130)


def draw_scores(axes, models, X, Y) -> None:
    names = list(TITLES)
    scores = np.array(
        [[DECISION_METRICS[n](Y, m.predict(X, metric=n)) for n in names] for m in models]
    )
    y = np.arange(len(names))[::-1]
    axes.hlines(y, [PAPER_YEAST[n] for n in names], scores.mean(0), color="#bbbbbb", lw=2)
    axes.plot([PAPER_YEAST[n] for n in names], y, "o", color="#888888", ms=9, label="published")
    axes.errorbar(
        scores.mean(0),
        y,
        xerr=scores.std(0, ddof=1),
        fmt="o",
        color="#0072b2",
        ms=9,
        capsize=3,
        label="mpvae, mean and sd of 3 seeds",
    )
    for value, height in zip(scores.mean(0), y, strict=True):
        above = {"xytext": (0, 10), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{value:.3f}", (value, height), **above)
    axes.set_yticks(y, [TITLES[n] for n in names])
    axes.set_ylim(-0.6, len(names) - 0.3)
    axes.set_title("yeast, official split: scores on test rows", loc="left")
    axes.legend(loc="lower left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def draw_correlation(axes, model) -> None:
    R = model.correlation_
    order = leaves_list(linkage(R, "average", optimal_ordering=True))
    image = axes.imshow(R[np.ix_(order, order)], cmap="RdBu_r", vmin=-1, vmax=1)
    names = model.label_names_[order]
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.set_title("how the labels hang together", loc="left")
    axes.figure.colorbar(image, ax=axes, label="correlation given the features", shrink=0.85)


if __name__ == "__main__":
    main()
