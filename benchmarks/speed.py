"""How fast a training step and a prediction are, as ratios measured side by side in one run.

Two yardsticks live in this file:

- the plain formulation: the paper's loss as its formulas read (two cdfs per label, a tensor of
  all pairs of labels for the ranking term, automatic differentiation; 10,000 draws to predict);
- the floor: the same networks and optimiser with a plain cross-entropy head.

Rows of a batch share sets of draws, and draws come in pairs u, -u; how accurate the gradient
then is, beside that of independent draws for every row, is measured too.

Run it alone on the machine:

    python benchmarks/speed.py [--out benchmarks/results/speed.json]
"""

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from mpvae import compiled, inference, losses, training
from mpvae.config import DataShape, Settings
from mpvae.data import simulate_probit
from mpvae.loop import can_be_taken
from mpvae.losses import mpvae_loss, probit_loss, term_weights
from mpvae.networks import MPVAE
from mpvae.presets import resolve
from mpvae.rows import Rows

BATCH, DRAWS, FEATURES = 128, 100, 100
FEWER = 64  # what fewer draws would gain; what they would cost: see `measure_variance`
LABELS = (14, 38, 100)
BARS = {14: (4, 1.3), 38: (20, 1.2), 100: (90, 1.5)}
PREDICT_ROWS, PREDICT_DRAWS = 1000, 10_000


def paper_settings(n_labels: int) -> Settings:
    """The paper's networks and loss (entropy off, as in the authors' code: plain has none)."""
    given = {"lambda_entropy": 0.0, "n_draws": DRAWS, "dropout": 0.0}
    return resolve("paper", given, DataShape(BATCH, FEATURES, n_labels))


def plain_branch(m, B, y, noise):
    """Cross-entropy and ranking of one branch, formula by formula."""
    E = Normal(0.0, 1.0).cdf(noise @ B.T + m)  # (S, N, L)
    E = E * (1 - 1e-6) + 0.5e-6
    log_prob = (y * E.log() + (1 - y) * (1 - E).log()).sum(-1)  # (S, N)
    nll = -(log_prob.logsumexp(0) - math.log(len(noise))).mean()
    pairs = y[:, :, None] * (1 - y)[:, None, :]  # (N, L, L)
    gaps = torch.exp(-(E[..., :, None] - E[..., None, :]))  # (S, N, L, L)
    ranking = (gaps * pairs).sum((-2, -1)) / pairs.sum((-2, -1)).clamp(min=1)
    return nll, ranking.mean()


class Step:
    """One training step of each kind on the same batch and equal networks."""

    def __init__(self, n_labels: int) -> None:
        torch.manual_seed(0)
        self.settings = paper_settings(n_labels)
        self.network = MPVAE(FEATURES, n_labels, self.settings)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(BATCH, FEATURES)
        self.y = (torch.rand(BATCH, n_labels) < 0.2).float()
        self.weight = torch.ones(BATCH)
        self.cross_entropy = nn.BCEWithLogitsLoss(reduction="sum")

    def _branches(self):
        eps = torch.randn(BATCH, self.settings.latent_dim)
        return self.network(self.x, self.y, eps)

    def _update(self, loss) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def ours(self, draws: int = DRAWS) -> None:
        self._update(self._terms(draws).total)

    def checked(self) -> None:
        """As `ours`, and as training does it: taken only where everything is finite."""
        terms = self._terms(DRAWS)
        self.optimizer.zero_grad()
        terms.total.backward()
        if can_be_taken(torch.stack(tuple(terms)).detach(), self.network.parameters()):
            self.optimizer.step()

    def _terms(self, draws: int):
        branches = self._branches()
        u = losses.sets_of_draws(BATCH, draws // 2, self.network.B)
        return mpvae_loss(branches, self.network.B, u, self.y, self.weight, self.settings)

    def floor(self) -> None:
        b = self._branches()
        fitted = self.cross_entropy(b.m_x, self.y) + self.cross_entropy(b.m_y, self.y)
        kl = kl_divergence(b.q_z_y, b.p_z_x).mean()
        self._update(fitted / BATCH + kl + 0 * self.network.B.sum())

    def plain(self) -> None:
        b = self._branches()
        noise = torch.randn(DRAWS, BATCH, self.settings.n_factors)
        kl = kl_divergence(b.q_z_y, b.p_z_x).mean()
        total = self.settings.beta**2 * kl
        for m in (b.m_x, b.m_y):
            nll, ranking = plain_branch(m, self.network.B, self.y, noise)
            total = total + 0.5 * nll + 10 * ranking
        self._update(total)


def predict_ours(network, x):
    return inference.marginals([network], x, 0)


def predict_means(network, x):
    """The networks alone, without any probability: the least a prediction can take."""
    with torch.inference_mode():
        x = torch.as_tensor(x)
        return network.decode(x, network.prior(x).mean)


def predict_plain(network, x):
    """Mean over 10,000 draws of the cdf, in pieces that fit into memory."""
    with torch.inference_mode():
        x = torch.as_tensor(x)
        m = network.decode(x, network.prior(x).mean)
        total = torch.zeros_like(m)
        for _ in range(PREDICT_DRAWS // 100):
            noise = torch.randn(100, len(x), network.B.shape[1])
            total += Normal(0.0, 1.0).cdf(noise @ network.B.T + m).sum(0)
        return (total / PREDICT_DRAWS).numpy()


def seconds(run, *args, repeats: int) -> float:
    run(*args)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(*args)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def alternate(*runs, repeats: int) -> list[float]:
    """Median seconds of things done in turn: a slow moment touches all alike."""
    times: list[list[float]] = [[] for _ in runs]
    for k in range(repeats + 3):
        for run, mine in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            if k >= 3:  # the first rounds warm up
                mine.append(time.perf_counter() - start)
    return [statistics.median(mine) for mine in times]


ESTIMATORS = {  # draws, in pairs u and -u, sets for the rows of a batch
    "100, independent for every row": (100, False, BATCH),
    "100 in pairs, for every row": (100, True, BATCH),
    "100 in pairs, 16 sets": (100, True, 16),
    "64 in pairs, 16 sets": (FEWER, True, 16),
    "32 in pairs, 16 sets": (32, True, 16),
}


def measure_variance(repeats: int = 60) -> list[dict]:
    """Mean squared error of the gradient of one batch, in units of that of the first estimator.

    The error against the gradient of very many draws, bias included; with it the variance of
    the gradient from batch to batch, in the same units: what a step's gradient is off anyway.
    """
    rows = []
    for n_labels, epochs in ((38, 0), (38, 2), (38, 10), (100, 0), (100, 2), (100, 10)):
        gradients = Gradients(n_labels, epochs)
        torch.manual_seed(1)
        batch = gradients.some_batch()
        truth, _ = mean_and_spread(lambda g=gradients, b=batch: g(*b, 2000, True, BATCH), 10)
        _, between = mean_and_spread(
            lambda g=gradients: g(*g.some_batch(), 200, True, BATCH), 60
        )
        unit = None
        for name, how in ESTIMATORS.items():
            _, error = mean_and_spread(
                lambda g=gradients, b=batch, how=how: g(*b, *how), repeats, truth
            )
            unit = unit or error
            row = {"labels": n_labels, "epochs": epochs, "draws": name}
            for k, part in enumerate(("networks", "loadings")):
                row[part] = error[k] / unit[k]
                row[f"{part}_between_batches"] = between[k] / unit[k]
            rows.append(row)
    return rows


class Gradients:
    """Gradients of a network after some epochs, by various draws."""

    def __init__(self, n_labels: int, epochs: int) -> None:
        data = simulate_probit(
            4000, n_features=FEATURES, n_labels=n_labels, n_factors=5, seed=0
        )
        self.X, self.Y = data.X.astype("float32"), data.Y.astype("float32")
        self.settings = replace(paper_settings(n_labels), max_epochs=max(epochs, 1))
        learn = Rows(self.X, self.Y, np.ones(len(self.X)))
        torch.manual_seed(0)
        self.network = MPVAE(FEATURES, n_labels, self.settings)
        if epochs:
            done = training.train(learn, None, self.settings, metric="micro_f1", seed=0)
            self.network = done.network
        self.network.requires_grad_(True)

    def some_batch(self):
        """Which rows, and the noise of their codes."""
        eps = torch.randn(BATCH, self.settings.latent_dim)
        return torch.randint(len(self.X), (BATCH,)).numpy(), eps

    def __call__(self, batch, eps, draws: int, pairs: bool, sets: int):
        """Of the networks' weights, and of the loadings."""
        x, y = torch.as_tensor(self.X[batch]), torch.as_tensor(self.Y[batch])
        u = torch.randn(sets, draws // 2 if pairs else draws, self.settings.n_factors)
        paired = replace(self.settings, n_draws=2 if pairs else 1)
        branches, B = self.network(x, y, eps), self.network.B
        self.network.zero_grad()
        mpvae_loss(branches, B, u, y, torch.ones(BATCH), paired).total.backward()
        others = [p.grad for name, p in self.network.named_parameters() if name != "B"]
        return torch.cat([g.reshape(-1) for g in others]), B.grad.reshape(-1)


def mean_and_spread(make, repeats: int, around=None):
    """Means of vectors, and their mean squared distances from them or from ``around``."""
    found = [make() for _ in range(repeats)]
    columns = [torch.stack(column) for column in zip(*found, strict=True)]
    centres = [column.mean(0) for column in columns] if around is None else around
    lost = 1 if around is None else 0
    spread = [
        float((column - centre).square().sum() / (repeats - lost))
        for column, centre in zip(columns, centres, strict=True)
    ]
    return centres, spread


def measure_steps() -> list[dict]:
    rows = []
    for n_labels in LABELS:
        step = Step(n_labels)
        fewer = partial(step.ours, FEWER)
        floor, ours, ours_fewer = alternate(step.floor, step.ours, fewer, repeats=300)
        unchecked, checked = alternate(step.ours, step.checked, repeats=300)
        plain, _ = alternate(step.plain, step.ours, repeats=5)
        rows.append(
            {
                "labels": n_labels,
                "floor_ms": 1e3 * floor,
                "ours_ms": 1e3 * ours,
                "plain_ms": 1e3 * plain,
                "faster_than_plain": plain / ours,
                "times_the_floor": ours / floor,
                "checked_times_ours": checked / unchecked,
                "fewer_ms": 1e3 * ours_fewer,
                "fewer_faster_than_plain": plain / ours_fewer,
                "fewer_times_the_floor": ours_fewer / floor,
            }
        )
    return rows


def measure_prediction() -> list[dict]:
    rows = []
    for preset in ("paper", "default"):
        for n_labels in LABELS:
            torch.manual_seed(0)
            shape = DataShape(2000, FEATURES, n_labels)
            settings = resolve(preset, {"n_factors": n_labels}, shape)
            network = MPVAE(FEATURES, n_labels, settings).eval()
            x = torch.randn(PREDICT_ROWS, FEATURES).numpy()
            ours = seconds(predict_ours, network, x, repeats=100)
            networks = seconds(predict_means, network, x, repeats=100)
            start = time.perf_counter()
            drawn = predict_plain(network, x)
            plain = time.perf_counter() - start
            rows.append(
                {
                    "networks": preset,
                    "labels": n_labels,
                    "ours_ms": 1e3 * ours,
                    "networks_alone_ms": 1e3 * networks,
                    "plain_ms": 1e3 * plain,
                    "faster_than_plain": plain / ours,
                    # the Monte Carlo error of the plain one
                    "largest_difference": float(abs(predict_ours(network, x) - drawn).max()),
                }
            )
    return rows


def measure_memory() -> list[dict]:
    """Peak memory of a step beyond the process at rest, each in a process of its own."""
    rows = []
    for n_labels in (100, 1000, 4000):
        command = [sys.executable, __file__, "--memory-of", str(n_labels)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows.append({"labels": n_labels, "peak_mb": float(out)})
    logs = [(math.log(r["labels"]), math.log(r["peak_mb"])) for r in rows[1:]]
    exponent = (logs[1][1] - logs[0][1]) / (logs[1][0] - logs[0][0])
    rows.append({"exponent_1000_to_4000": exponent})
    return rows


def memory_of(n_labels: int) -> float:
    """Megabytes a loss and gradient of 16 factors and 100 draws need at their peak."""
    shape = DataShape(BATCH, FEATURES, n_labels)
    given = {"lambda_entropy": 0.0, "n_draws": DRAWS, "n_factors": 16}
    settings = resolve("paper", given, shape)
    network = MPVAE(FEATURES, n_labels, settings)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    x, y = torch.randn(BATCH, FEATURES), (torch.rand(BATCH, n_labels) < 0.02).float()
    u = losses.sets_of_draws(BATCH, DRAWS // 2, network.B)
    probit_loss(  # a small one first: what loading compiled code takes does not count
        torch.zeros(1, 1, 2), torch.zeros(2, 1), torch.zeros(1, 1, 1), torch.zeros(1, 2),
        torch.ones(1), term_weights(settings),
    )  # fmt: skip
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before = status_kb("VmRSS")
    for _ in range(3):
        branches = network(x, y, torch.randn(BATCH, settings.latent_dim))
        loss = mpvae_loss(branches, network.B, u, y, torch.ones(BATCH), settings).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (status_kb("VmHWM") - before) / 1024


def status_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        print(memory_of(args.memory_of))
        return
    result = {
        "torch": torch.__version__,
        "compiled_kernel": compiled.available,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "batch": BATCH,
        "draws": DRAWS,
        "features": FEATURES,
        "step": measure_steps(),
        "prediction": measure_prediction(),
        "memory": measure_memory(),
        "variance": measure_variance(),
    }
    print(f"Training step: batch {BATCH}, {DRAWS} draws, full-rank loadings, paper's networks")
    print("labels   floor ms   ours ms   plain ms   vs plain (bar)     vs floor (bar)")
    for r in result["step"]:
        plain_bar, floor_bar = BARS[r["labels"]]
        print(
            f"{r['labels']:6d} {r['floor_ms']:10.2f} {r['ours_ms']:9.2f} {r['plain_ms']:10.1f}"
            f" {r['faster_than_plain']:9.1f}x (>= {plain_bar})"
            f" {r['times_the_floor']:9.2f}x"
        )
        print(
            f"{FEWER:6d} draws in pairs: {r['fewer_ms']:7.2f} {'':10s}"
            f" {r['fewer_faster_than_plain']:9.1f}x (>= {plain_bar})"
            f" {r['fewer_times_the_floor']:9.2f}x (<= {floor_bar})"
        )
    for r in result["step"]:
        ratio = r["checked_times_ours"]
        print(f"{r['labels']:6d} labels: a step that is checked takes {ratio:.3f}x its time")
    print("\nError of a batch's gradient, 100 independent draws = 1; between batches beside it")
    print("labels  epochs  draws                            networks (between)  loadings")
    for r in result["variance"]:
        print(
            f"{r['labels']:6d} {r['epochs']:7d}  {r['draws']:31s} {r['networks']:9.2f}"
            f" ({r['networks_between_batches']:6.1f})  {r['loadings']:7.2f}"
            f" ({r['loadings_between_batches']:5.2f})"
        )
    print(f"\nPrediction of {PREDICT_ROWS} rows against {PREDICT_DRAWS} draws (bar: 700x)")
    for r in result["prediction"]:
        print(
            f"{r['labels']:6d} labels, {r['networks']} networks: {r['ours_ms']:.2f} ms"
            f" (networks alone {r['networks_alone_ms']:.2f}) against {r['plain_ms']:.0f} ms,"
            f" {r['faster_than_plain']:.0f}x; largest difference {r['largest_difference']:.4f}"
        )
    print("\nPeak memory of a step (16 factors, 100 draws)")
    for r in result["memory"][:-1]:
        print(f"{r['labels']:6d} labels: {r['peak_mb']:.0f} MB")
    exponent = result["memory"][-1]["exponent_1000_to_4000"]
    print(f"exponent in L between 1,000 and 4,000: {exponent:.2f}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
