"""How cost grows with labels, rows and draws: exponents and ratios, each measured in one run.

    python benchmarks/scale.py labels rows draws      # 1: time and memory, fitted exponents
    python benchmarks/scale.py extreme                # 2: 10,000 labels x 100,000 sparse rows
    python benchmarks/scale.py imdb                   # 3: streamed against in memory
    python benchmarks/scale.py processes              # 4: two under torchrun against one
    python benchmarks/scale.py lost                   # 4: a worker killed under Ray

Every measurement is a process of its own, so that its peak memory is its own. Run it alone on
the machine. Results go to benchmarks/results/scale.json.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scale.json"
LABELS, ROWS, DRAWS = (100, 1000, 10_000), (10_000, 100_000, 1_000_000), (10, 100, 1000)
FEATURES = 50
STEPS = 30
IMDB_SEEDS = 3


# ------------------------------------------------------------------ what a process measures


def peak_memory() -> float:
    """In MB, of this process so far (`getrusage` also counts what its parent had)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024


def measure_step(n_labels: int, n_draws: int) -> dict:
    """Seconds of a training step of 128 rows, and memory, by the networks as they are."""
    import scipy.sparse as sp
    import torch

    from mpvae import training
    from mpvae.config import DataShape
    from mpvae.presets import resolve
    from mpvae.rows import Rows

    rng = np.random.default_rng(0)
    n = 128 * STEPS
    X = rng.normal(size=(n, FEATURES)).astype(np.float32)
    Y = sp.random_array((n, n_labels), density=min(0.05, 5 / n_labels), format="csr", rng=rng)
    Y.data[:] = 1
    given = {"n_draws": n_draws, "max_epochs": 1, "batch_size": 128, "n_members": 1}
    settings = resolve("default", given, DataShape(n, FEATURES, n_labels))
    rows = Rows(X, Y.astype(np.float32), np.ones(n))
    torch.set_num_threads(1)
    small = resolve("default", given | {"n_draws": 2}, DataShape(n, FEATURES, 2))
    few = Rows(X[:256], Y[:256, :2].astype(np.float32), np.ones(256))
    training.train(few, None, small, metric="micro_f1", seed=0)  # loads and compiles
    before = peak_memory()
    start = time.perf_counter()
    training.train(rows, None, settings, metric="micro_f1", seed=0)
    took = (time.perf_counter() - start) / STEPS
    return {"seconds": took, "memory": peak_memory() - before, "peak": peak_memory()}


def measure_rows(folder: str) -> dict:
    """Seconds of a streamed fit of one network and one epoch per row, and memory."""
    import torch

    from mpvae import MPVAEClassifier
    from mpvae.data.parts import open_parts

    torch.set_num_threads(1)
    n = len(open_parts(folder))
    model = MPVAEClassifier(n_members=1, max_epochs=1, random_state=0)
    start = time.perf_counter()
    model.fit_stream(folder, labels="y*")
    took = (time.perf_counter() - start) / n
    return {"seconds": took, "memory": peak_memory(), "peak": peak_memory()}


def measure_extreme(n: int, n_labels: int) -> dict:
    """An epoch and a prediction pass with very many labels, and precision@5."""
    import scipy.sparse as sp
    from sklearn.linear_model import LogisticRegression

    from mpvae import MPVAEClassifier

    X, Y, topics, tags = low_rank(n + n // 10, n_labels)
    learn, ask = slice(0, n), slice(n, None)
    model = MPVAEClassifier(n_members=1, max_epochs=1, random_state=0)
    start = time.perf_counter()
    model.fit(X[learn], Y[learn])
    fitted = time.perf_counter()
    names, _ = model.predict_top(X[ask], 5)
    predicted = time.perf_counter()
    column = np.array([[int(name.removeprefix("label_")) for name in row] for row in names])
    hits = np.asarray(sp.csr_array(Y[ask])[np.arange(len(column))[:, None], column].todense())
    memory = peak_memory()
    pieces = np.array_split(topics[ask], 20)
    best = np.vstack([np.argpartition(-(some @ tags), 5, axis=1)[:, :5] for some in pieces])
    in_truth = sp.csr_array(Y[ask])[np.arange(len(best))[:, None], best]
    often = np.flatnonzero(Y[learn].sum(0) >= 50)
    chosen = np.random.default_rng(1).choice(often, 100, replace=False)
    P_ours = np.zeros((len(column), len(chosen)))
    step = 1000
    for begin in range(0, len(column), step):
        piece = slice(n + begin, n + begin + step)
        P_ours[begin : begin + step] = model.predict_proba(X[piece])[:, chosen]
    P_theirs = np.zeros_like(P_ours)
    for k, label in enumerate(chosen):
        y = np.asarray(Y[learn][:, [label]].todense()).ravel()
        if 0 < y.sum() < len(y):
            one = LogisticRegression(max_iter=200).fit(X[learn], y)
            P_theirs[:, k] = one.predict_proba(X[ask])[:, 1]
    truth = np.asarray(Y[ask][:, chosen].todense())
    return {
        "rows": n,
        "labels": n_labels,
        "fit_rows_per_second": n / (fitted - start),
        "predict_rows_per_second": len(column) / (predicted - fitted),
        "memory": memory,
        "precision_at_5": float(hits.mean()),
        "best_possible_precision_at_5": float(np.asarray(in_truth.todense()).mean()),
        "precision_at_5_of_100_labels": _precision(truth, P_ours),
        "logistic_precision_at_5_of_100_labels": _precision(truth, P_theirs),
    }


def _precision(truth: np.ndarray, P: np.ndarray) -> float:
    """Precision@5 among rows that have one of the labels."""
    rows = truth.any(1)
    top = np.argsort(-P[rows], axis=1)[:, :5]
    return float(np.take_along_axis(truth[rows], top, 1).mean())


def low_rank(n: int, n_labels: int):
    """Sparse features and labels, and the topics of rows and labels that they share."""
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    topics = 30
    of_row = rng.dirichlet(np.full(topics, 0.1), size=n)
    words = rng.dirichlet(np.full(2000, 0.02), size=topics)
    tags = rng.dirichlet(np.full(n_labels, 20 / n_labels), size=topics)

    def drawn(of_topic: np.ndarray, per_row: int) -> sp.csr_array:
        topic = (of_row.cumsum(1)[:, None] > rng.random((n, per_row, 1))).argmax(2)
        cumulated = of_topic.cumsum(1)
        flat = np.empty(n * per_row, np.int64)
        u, t = rng.random(n * per_row), topic.ravel()
        for k in range(topics):
            flat[t == k] = np.searchsorted(cumulated[k], u[t == k] * cumulated[k, -1])
        indptr = np.arange(0, n * per_row + 1, per_row)
        found = sp.csr_array(
            (np.ones(n * per_row, np.float32), flat, indptr), (n, of_topic.shape[1])
        )
        found.sum_duplicates()
        return found

    X, Y = drawn(words, 40), drawn(tags, 5)
    Y.data[:] = 1
    return X, Y, of_row, tags


def measure_imdb(folder: str, streamed: bool, seed: int) -> dict:
    """One network on imdb, streamed from Parquet or in memory: time, memory, score."""
    import pandas as pd

    from mpvae import MPVAEClassifier

    model = MPVAEClassifier(base=None, n_members=1, random_state=seed)
    test = pd.read_parquet(Path(folder) / "test.parquet")
    labels = [name for name in test.columns if name.startswith("y_")]
    X, Y = test.drop(columns=labels), test[labels]
    start = time.perf_counter()
    if streamed:
        model.fit_stream(Path(folder) / "train", labels="y_*")
    else:
        table = pd.read_parquet(Path(folder) / "train")
        model.fit(table.drop(columns=labels), table[labels])
    took = time.perf_counter() - start
    memory = peak_memory()
    Z = np.asarray(model.predict(X, metric="micro_f1"))
    # 2 TP / (positives + predicted), resampled by rows: the error of a score on so many rows
    hits, counts = (Z * Y.to_numpy()).sum(1), Z.sum(1) + Y.to_numpy().sum(1)
    rng = np.random.default_rng(0)
    some = (rng.integers(len(Z), size=len(Z)) for _ in range(200))
    spread = np.std([2 * hits[i].sum() / counts[i].sum() for i in some])
    return {
        "seconds": took,
        "memory": memory,
        "micro_f1": float(2 * hits.sum() / counts.sum()),
        "micro_f1_error": float(spread),
        "epochs": model.n_epochs_,
    }


def measure_share(batch: int, seed: int) -> dict:
    """Seconds and loss of each epoch of one network, by as many processes as there are."""
    import torch

    from mpvae import training
    from mpvae.config import DataShape
    from mpvae.data import simulate_probit
    from mpvae.distributed import joined
    from mpvae.presets import resolve
    from mpvae.rows import Rows

    torch.set_num_threads(1)
    data = simulate_probit(20_000, n_features=100, n_labels=50, n_factors=5, seed=0)
    rows = Rows(data.X.astype(np.float32), data.Y.astype(np.float32), np.ones(len(data.X)))
    given = {"max_epochs": 6, "batch_size": batch, "n_members": 1, "hidden": (512, 512)}
    settings = resolve("default", given, DataShape(*data.X.shape, data.Y.shape[1]))
    times, losses = [time.perf_counter()], []

    def on_epoch(record) -> None:
        times.append(time.perf_counter())
        losses.append(record.terms["total"])

    with joined() as us:
        training.train(rows, None, settings, metric="micro_f1", seed=seed, on_epoch=on_epoch)
    # the first epoch compiles and connects
    return {"rank": us.rank, "seconds": float(np.median(np.diff(times)[1:])), "losses": losses}


# ------------------------------------------------------------------------------ what is shown


def in_process(
    function: str, *arguments: object, threads: int = 1, of_two: bool = False
) -> dict:
    """Result of a function of this file in a process of its own, or in the first of two."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if of_two else []
    done = subprocess.run(
        [sys.executable, *launcher, __file__, "--only", function, json.dumps(arguments)],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
    return min(found, key=lambda result: result.get("rank", 0))


def exponent(sizes, values) -> float:
    """Slope of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def growth(name: str, sizes, runs: list[dict]) -> dict:
    found = {"sizes": list(sizes), "runs": runs}
    for what in ("seconds", "memory"):
        found[f"{what}_exponent"] = exponent(sizes, [run[what] for run in runs])
    print(f"{name}:")
    for size, run in zip(sizes, runs, strict=True):
        print(
            f"  {size:>9,}  {1e3 * run['seconds']:10.4f} ms  {run['memory']:8.0f} MB, "
            f"whole process {run['peak']:6.0f} MB"
        )
    print(
        f"  exponents: time {found['seconds_exponent']:.2f}, "
        f"memory {found['memory_exponent']:.3f}"
    )
    return found


def labels() -> dict:
    runs = [in_process("measure_step", L, 20) for L in LABELS]
    return growth("step of 128 rows, against labels", LABELS, runs)


def draws() -> dict:
    runs = [in_process("measure_step", 100, n) for n in DRAWS]
    return growth("step of 128 rows and 100 labels, against draws", DRAWS, runs)


def write_table(file: Path, n: int, seed: int = 0) -> None:
    """Features x0 ... and labels y0 ... of n rows, as Parquet."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, FEATURES)).astype(np.float32)
    Y = X[:, :20] + rng.normal(size=(n, 20)) > 1
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(FEATURES)])
    frame = frame.join(pd.DataFrame(Y, columns=[f"y{j}" for j in range(20)]))
    frame.to_parquet(file, row_group_size=20_000)


def rows() -> dict:
    runs = []
    for n in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            for k, start in enumerate(range(0, n, 100_000)):
                write_table(Path(folder) / f"{k:03d}.parquet", min(100_000, n - start), k)
            runs.append(in_process("measure_rows", folder))
    found = growth("streamed fit, seconds per row, against rows", ROWS, runs)
    found["total_exponent"] = 1 + found["seconds_exponent"]
    print(f"  exponent of the total time: {found['total_exponent']:.2f}")
    return found


def extreme() -> dict:
    found = in_process("measure_extreme", 100_000, 10_000, threads=2)
    for name, value in found.items():
        print(f"  {name}: {value:,.4g}")
    return found


def imdb() -> dict:
    import pandas as pd

    from mpvae.data import data_folder, read_table

    table = read_table((data_folder() or HERE.parents[1] / "shared" / "data") / "imdb.npz")
    order = np.random.default_rng(0).permutation(len(table))
    of_part = {"train": order[: len(order) * 4 // 5], "test": order[len(order) * 4 // 5 :]}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train").mkdir()
        for part in ("train", "test"):
            rows = np.sort(of_part[part])
            Y = table.labels().iloc[rows].add_prefix("y_").astype(np.int8)
            Y = Y.reset_index(drop=True)
            X = table.features()[rows].toarray()
            frame = pd.DataFrame(
                X.astype(np.int8), columns=[f"w{j}" for j in range(X.shape[1])]
            )
            file = (
                folder / "train" / "part.parquet"
                if part == "train"
                else folder / "test.parquet"
            )
            frame.join(Y).to_parquet(file, row_group_size=10_000)
        runs = [
            {
                name: in_process(
                    "measure_imdb", str(folder), name == "streamed", seed, threads=2
                )
                for name in ("memory", "streamed")
            }
            for seed in range(IMDB_SEEDS)
        ]
    found = {}
    for name in ("memory", "streamed"):
        found[name] = {
            what: float(np.mean([run[name][what] for run in runs]))
            for what in ("seconds", "memory", "micro_f1", "micro_f1_error")
        }
        found[name]["micro_f1_spread"] = float(
            np.std([run[name]["micro_f1"] for run in runs], ddof=1)
        )
        print(
            f"  {name:9s} {found[name]['seconds']:6.0f} s  {found[name]['memory']:6.0f} MB  "
            f"micro-F1 {found[name]['micro_f1']:.4f}, +- {found[name]['micro_f1_error']:.4f} "
            f"over rows, {found[name]['micro_f1_spread']:.4f} between seeds"
        )
    ratio = float(
        np.median([run["streamed"]["seconds"] / run["memory"]["seconds"] for run in runs])
    )
    print(f"  streamed / in memory: {ratio:.2f} of the time")
    return found | {"ratio": ratio, "runs": runs}


def processes() -> dict:
    """Two processes share every batch of one: speed, and the loss after every epoch."""
    found = {}
    for batch in (256, 1024):
        alone = [in_process("measure_share", batch, seed) for seed in range(4)]
        both = in_process("measure_share", batch, 0, of_two=True)
        curves = np.array([run["losses"] for run in alone])
        # Epochs of other noise and order differ by this; two processes draw other noise too.
        spread = curves.std(0, ddof=1)
        off = (np.array(both["losses"]) - curves.mean(0)) / (spread * np.sqrt(1 + 1 / 4))
        one = float(np.median([run["seconds"] for run in alone]))
        found[str(batch)] = {
            "speedup": one / both["seconds"],
            "seconds_alone": one,
            "losses_alone": curves.mean(0).tolist(),
            "losses_two": both["losses"],
            "spread": spread.tolist(),
            "off_in_spreads": off.tolist(),
        }
        print(
            f"  batch {batch}: {one / both['seconds']:.2f}x the speed of one process; loss "
            f"{both['losses'][-1]:.4f} against {curves.mean(0)[-1]:.4f} +- {spread[-1]:.4f}, "
            f"off by at most {abs(off).max():.1f} spreads"
        )
    return found


def lost() -> dict:
    """A worker of two is killed (SIGKILL) in the middle of a training under Ray."""
    from mpvae import load_model

    found = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_table(folder / "rows.parquet", 20_000)
        for name in ("undisturbed", "killed"):
            words = ["fit", "rows.parquet", "--labels", "y*", "--out", name, "--base", "none"]
            words += ["--engine", "ray", "--workers", "2", "--set", "max_epochs=40"]
            start = time.perf_counter()
            run = subprocess.Popen(
                [sys.executable, "-m", "mpvae", *words],
                cwd=folder,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
            )
            killed = None
            while name == "killed" and killed is None and run.poll() is None:
                time.sleep(0.2)
                if list(folder.glob(".killed.training/run/checkpoint_*/training-*")):
                    found_workers = subprocess.run(
                        ["pgrep", "-f", "RayTrainWorker"], capture_output=True, text=True
                    )
                    time.sleep(1.0)  # into the next epochs
                    killed = int(found_workers.stdout.split()[-1])
                    os.kill(killed, signal.SIGKILL)
            assert run.wait() == 0
            model = load_model(folder / name)
            found[name] = {
                "seconds": time.perf_counter() - start,
                "killed": killed,
                "scores": model.validation_scores_,
                "weights": [p.numpy() for n in model.networks_ for p in n.parameters()],
            }
    a, b = found["undisturbed"], found["killed"]
    assert b["killed"] is not None
    same = all(
        np.array_equal(p, q) for p, q in zip(a.pop("weights"), b.pop("weights"), strict=True)
    )
    for name, run in found.items():
        print(f"  {name}: micro-F1 {run['scores']['micro_f1']:.6f} in {run['seconds']:.0f} s")
    print(f"  weights equal bit for bit: {same}")
    return found | {"equal": same}


PARTS = {
    "labels": labels,
    "draws": draws,
    "rows": rows,
    "extreme": extreme,
    "imdb": imdb,
    "processes": processes,
    "lost": lost,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", help=f"of {', '.join(PARTS)}; all, if none is given"
    )
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(globals()[args.only[0]](*json.loads(args.only[1]))), flush=True)
        return
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for name in args.parts or PARTS:
        found[name] = PARTS[name]()
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
