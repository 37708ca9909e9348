"""Valid files of every format, small ones, to be made worse."""

import bz2
import gzip
import io
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy.sparse import csr_array

from mpvae import MPVAEClassifier
from mpvae.checkpoints import Checkpoint, Kept

FIXTURES = Path(__file__).parents[1] / "fixtures"
QUESTION = "0123456789abcdef"
Files = dict[str, bytes]


@cache
def frame() -> pd.DataFrame:
    """Thirty rows: numbers with a gap, text, a category, two labels."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "depth": rng.normal(10, 3, 30).round(2),
            "acidity": rng.normal(7, 0.5, 30).round(2),
            "ground": rng.choice(["sand", "mud", "rock"], 30),
            "seen": pd.Categorical(rng.choice(["once", "twice"], 30)),
            "y_trout": rng.integers(0, 2, 30),
            "y_eel": rng.integers(0, 2, 30),
        }
    )
    table.loc[3, "acidity"] = np.nan
    return table


@cache
def delimited() -> list[Files]:
    quoted = 'a,"b ""x"", c",y_1\n1,"two\nlines",0\n2.5,,1\n-3e2,NA,0\n'
    texts = [frame().to_csv(index=False), frame().to_csv(index=False, sep=";"), quoted]
    return [{"zebra.csv": text.encode()} for text in texts]


@cache
def tabbed() -> list[Files]:
    return [{"zebra.tsv": frame().to_csv(index=False, sep="\t").encode()}]


@cache
def packed(suffix: str) -> list[Files]:
    pack = {"gz": lambda data: gzip.compress(data, mtime=0), "bz2": bz2.compress}[suffix]
    return [{f"zebra.csv.{suffix}": pack(files["zebra.csv"])} for files in delimited()]


@cache
def parquet() -> list[Files]:
    ways: list[dict[str, Any]] = [
        {"compression": "snappy"},
        {"compression": "none", "row_group_size": 12},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "gzip", "use_dictionary": False, "version": "1.0"},
        {"compression": "lz4", "write_page_index": True, "write_page_checksum": True},
        {"compression": "brotli", "column_encoding": _SPLIT, "use_dictionary": False},
    ]
    return [{"zebra.parquet": _as_parquet(frame(), **way)} for way in ways]


_SPLIT = {"depth": "BYTE_STREAM_SPLIT"}


def _as_parquet(table: pd.DataFrame, **way: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), stream, **way)
    return stream.getvalue()


@cache
def parts() -> list[Files]:
    first, second = frame()[:17], frame()[17:]
    return [
        {"part-0.parquet": _as_parquet(first), "part-1.parquet": _as_parquet(second)},
        {
            "part-0.parquet": _as_parquet(first, compression="none", row_group_size=5),
            "part-1.parquet": _as_parquet(second, compression="zstd"),
        },
    ]


_ARFF = b"""% a comment
@relation 'fish: -C 2'
@attribute y_trout {0,1}
@attribute 'y eel' {0,1}
@attribute depth numeric
@attribute ground {sand,'mud, wet',rock}
@attribute note string
@data
1,0,2.5,sand,'it\\'s'
0,1,-1e3,'mud, wet',"b"
?,1,?,rock,?
"""
_SPARSE_ARFF = b"""@relation tags
@attribute w0 numeric
@attribute w1 real
@attribute flag {1,0}
@attribute y_a {0,1}
@attribute y_b {0,1}
@data
{0 1.5, 3 1}
{1 2,2 0, 4 1}
{}
"""
_XML = b"""<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="y_a"></label><label name="y_b"/>
</labels>
"""


@cache
def arff() -> list[Files]:
    return [{"zebra.arff": _ARFF}, {"zebra.arff": _SPARSE_ARFF}]


@cache
def xml() -> list[Files]:
    return [{"zebra.arff": _SPARSE_ARFF, "zebra.xml": _XML}]


@cache
def libsvm() -> list[Files]:
    plain = b"1,3 5:0.5 9:1\n2 1:-1e3\n 4:2 # no label\n1,2,3 1:1 2:1 3:1 4:1\n"
    return [{"zebra.svm": plain}, {"zebra.svm": b"0 0:1\n1 7:2.5\n"}]


@cache
def extreme() -> list[Files]:
    return [{"zebra.txt": b"4 6 3\n0,2 0:0.5 5:1\n1 1:2\n 3:1\n0,1,2 2:1 4:1\n"}]


@cache
def npz() -> list[Files]:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(8, 3)), rng.integers(0, 2, (8, 2))
    named = {"feature_names": np.array(["a", "b", "c"]), "label_names": np.array(["u", "v"])}
    index = {"train_idx": np.arange(5), "test_idx": np.arange(5, 8)}
    csr = csr_array(X * (X > 0))
    wide = {"data": csr.data, "indices": csr.indices, "indptr": csr.indptr, "shape": csr.shape}
    sets: list[dict[str, Any]] = [
        {"X": X, "Y": Y, **named, **index},
        {"X": X.astype(np.float32), "Y": np.where(Y == 1, np.nan, Y)},
        {"Y": Y.astype(np.int8), **wide, **named},
    ]
    found = []
    for k, arrays in enumerate(sets):
        stream = io.BytesIO()
        (np.savez if k else np.savez_compressed)(stream, **arrays)
        found.append({"zebra.npz": stream.getvalue()})
    return found


@cache
def npy() -> list[Files]:
    rng = np.random.default_rng(0)
    matrix = np.hstack([rng.integers(0, 2, (8, 2)), rng.normal(size=(8, 3))])
    arrays = {
        "zebra_data.npy": matrix,
        "zebra_train_idx.npy": np.arange(5),
        "zebra_test_idx.npy": np.arange(5, 8),
    }
    files = {name: _as_npy(array) for name, array in arrays.items()}
    return [files, {"zebra_data.npy": _as_npy(np.asfortranarray(matrix.astype(np.float32)))}]


def _as_npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@cache
def toml() -> list[Files]:
    text = (
        b'# settings\nhidden = [64, 32]\nlr = 1e-3\nn_members = 2\npatience = "none"\n'
        b'monitor = "micro_f1"\nquantiles = true\nbase = "kernel,forest"\n'
        b'threshold = """auto"""\n'
    )
    return [
        {"zebra.toml": text},
        {"zebra.toml": b"max_epochs = 5\n[lr]\nx.y = [1, {z = 07:32:00}]\n"},
    ]


@cache
def models() -> list[Files]:
    """The model of the first schema, and one with all that a model may hold since."""
    return [first_model(), *(_fitted(**way) for way in _WAYS)]


def first_model() -> Files:
    return folder(FIXTURES / "model_v1")


_WAYS: list[dict[str, Any]] = [
    {"base": ["kernel", "boosting"], "kernel_features": 4, "quantiles": True},
    {"base": ["forest"]},
]


def _fitted(**settings: Any) -> Files:
    rng = np.random.default_rng(0)
    X = frame()[["depth", "acidity", "ground"]][:24]
    Y = pd.DataFrame(rng.integers(0, 2, (24, 2)), columns=["y_trout", "y_eel"])
    model = MPVAEClassifier(
        hidden=(4,), latent_dim=2, n_factors=2, n_draws=4, n_members=2, max_epochs=2,
        random_state=0, **settings,
    ).fit(X, Y)  # fmt: skip
    with tempfile.TemporaryDirectory() as home:
        model.save(Path(home) / "model")
        return folder(Path(home) / "model")


def folder(path: Path) -> Files:
    """The files of a folder."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


@cache
def states() -> list[Files]:
    """State of a training, as `Checkpoint.write` leaves it."""
    tensors = {
        "weight": torch.arange(12.0).reshape(3, 4),
        "steps": torch.tensor(7),
        "mask": torch.tensor([True, False]),
    }
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "zebra.safetensors"
        state = Checkpoint(file, QUESTION, Kept(file.parent), 0.0)
        state.write(tensors, {"epoch": 3, "history": [{"loss": 0.5}]})
        return [{"zebra.safetensors": file.read_bytes()}]
