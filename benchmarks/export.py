"""An exported model beside the classifier: how close its answers are, and how quick.

    python benchmarks/export.py [yeast scene norberg_birds]

Default settings, official split. Both answer about the same rows, turn by turn in one process,
with as many threads (--threads, 1); times are ratios of medians. Results go to
benchmarks/results/export.json; `make tables` puts them into docs/export.md. Data sets are the
.npz files in $MPVAE_DATA or ../shared/data; yeast falls back to river's.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("data", nargs="*", default=["yeast", "scene", "norberg_birds"])
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--rounds", type=int, default=7)
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch and the compiled loops

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402

from accuracy import load  # noqa: E402
from mpvae import MPVAEClassifier, __version__  # noqa: E402
from mpvae.export import to_onnx  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "export.json"
SIZES = (1, 1000)


def folder_bytes(model: MPVAEClassifier) -> int:
    with tempfile.TemporaryDirectory() as place:
        model.save(Path(place) / "model")
        return sum(file.stat().st_size for file in (Path(place) / "model").iterdir())


def seconds(ask, *given) -> float:
    start = time.perf_counter()
    ask(*given)
    return time.perf_counter() - start


def measure(name: str) -> dict:
    table = load(name)
    train, test = table.split("train"), table.split("test")
    model = MPVAEClassifier(random_state=0).fit(train.features(), train.labels())
    model.verbose = 0
    start = time.perf_counter()
    content = to_onnx(model)
    made = time.perf_counter() - start
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(content, options)
    opened = time.perf_counter() - start
    frame = test.features()
    X = np.asarray(frame, np.float64)
    p, labels = session.run(["probabilities", "labels"], {"X": X})
    found = {
        "data": name,
        "features": X.shape[1],
        "labels": len(model.label_names_),
        "megabytes": len(content) / 2**20,
        "folder_megabytes": folder_bytes(model) / 2**20,
        "seconds_to_make": made,
        "seconds_to_open": opened,
        "largest_difference": float(np.abs(p - model.predict_proba(frame)).max()),
        "other_decisions": int((labels != model.predict(frame, rule="threshold")).sum()),
        "decisions": int(labels.size),
    }
    for n in SIZES:
        rows = np.resize(np.arange(len(X)), n)
        some, asked = frame.iloc[rows].reset_index(drop=True), np.ascontiguousarray(X[rows])
        times = {"mpvae": [], "onnx": []}
        repeats = 20 if n == 1 else 1
        for _ in range(args.rounds + 1):
            for _ in range(repeats):
                times["mpvae"].append(seconds(model.predict_proba, some))
                times["onnx"].append(seconds(session.run, ["probabilities"], {"X": asked}))
        ours, theirs = (statistics.median(t[repeats:]) for t in times.values())  # warm
        found[f"rows_{n}"] = {"mpvae_ms": 1e3 * ours, "onnx_ms": 1e3 * theirs}
        found[f"rows_{n}"]["times_mpvae"] = theirs / ours
    return found


def main() -> None:
    torch.set_num_threads(args.threads)
    runs = []
    for name in args.data:
        found = measure(name)
        runs.append(found)
        one, many = found["rows_1"]["times_mpvae"], found["rows_1000"]["times_mpvae"]
        print(
            f"{name}: {found['megabytes']:.1f} MB (folder {found['folder_megabytes']:.1f}), "
            f"largest difference {found['largest_difference']:.1e}, other decisions "
            f"{found['other_decisions']} of {found['decisions']}; 1 row {one:.2f}x the time of "
            f"mpvae, 1,000 rows {many:.2f}x",
            flush=True,
        )
    versions = {
        "mpvae": __version__,
        "onnxruntime": onnxruntime.__version__,
        "torch": torch.__version__,
    }
    results = {"threads": args.threads, "versions": versions, "runs": runs}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
