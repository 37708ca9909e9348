"""Small files that are made to unpack, repeat or search without end.

Chance does not make these: each was thought of, or grown from a find.
"""

import bz2
import gzip
import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz import seeds
from fuzz.mutations import MAX_BYTES
from fuzz.seeds import Files

_ZERO = 'x,"y_1"\n' + "0,1\n" * 10


def _gzip(content: bytes) -> Files:
    return {"zebra.csv.gz": gzip.compress(content)}


def _bzip2(content: bytes) -> Files:
    return {"zebra.csv.bz2": bz2.compress(content)}


def _arff(header: str, row: str) -> Files:
    text = f"@relation r\n{header}@data\n"
    return {"zebra.arff": (text + row * ((MAX_BYTES - len(text)) // len(row))).encode()}


def _attributes(kind: str, n: int) -> str:
    return "".join(f"@attribute {k} {kind}\n" for k in range(n))


def _long_row() -> Files:
    features = " ".join(f"{k}:1" for k in range(1, 12_000))
    return {"zebra.svm": f"1 {features} 11999:1\n".encode()}


def _many_names() -> Files:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<U0", "fortran_order": False, "shape": (10**12,)}
    )
    return _zip(
        {"X.npy": seeds._as_npy(np.ones((2, 2))), "feature_names.npy": stream.getvalue()}
    )


def _zip(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Files:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method, compresslevel=6) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return {"zebra.npz": stream.getvalue()}


def _overlapping() -> Files:
    """Arrays of many names over the same packed bytes."""
    names = ("data", "indices", "indptr", "shape", "Y", "feature_names", "train_idx")
    (whole,) = _zip({"X.npy": seeds._as_npy(np.zeros((10**6, 60), np.int8))}).values()
    start = whole.index(b"PK\x01\x02")
    entry = whole[start : whole.index(b"PK\x05\x06")]
    entries = [entry]
    for name in names:
        told = f"{name}.npy".encode()
        fixed = bytearray(entry[:46])
        fixed[28:30] = struct.pack("<H", len(told))
        entries.append(bytes(fixed) + told + entry[46 + 5 :])
    directory = b"".join(entries)
    end = struct.pack(
        "<4s4H2IH", b"PK\x05\x06", 0, 0, len(entries), len(entries), len(directory), start, 0
    )
    return {"zebra.npz": whole[:start] + directory + end}


def _parquet(columns: dict[str, object], **way: object) -> Files:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, **way)
    return {"zebra.parquet": stream.getvalue()}


def _many_rows() -> Files:
    rows = pa.array(np.zeros(2 * 10**7))
    table = {"x": rows, "y_1": pa.array(np.zeros(2 * 10**7, bool))}
    way = {"data_page_size": 2**30, "row_group_size": 10**8}
    try:
        return _parquet(table, **way, max_rows_per_page=10**8)
    except TypeError:  # an older Arrow, whose pages have as many rows as fit
        return _parquet(table, **way)


def _long_text() -> Files:
    text = pa.DictionaryArray.from_arrays(np.zeros(5000, np.int32), ["a" * 10**6])
    table = {"t": text, "y_1": pa.array([0, 1] * 2500)}
    plain = {"store_schema": False, "compression": "zstd", "compression_level": 9}
    return _parquet(table, **plain)


def _packed_zeros() -> Files:
    n = 6 * 10**6
    table = {f"x{k}": pa.array(np.zeros(n)) for k in range(2)}
    return _parquet(
        table | {"y_1": pa.array(np.zeros(n))}, use_dictionary=False, compression="zstd"
    )


def _delta() -> Files:
    table = {"x": pa.array([f"{k}" for k in range(9)]), "y_1": pa.array([0] * 9)}
    return _parquet(
        table, use_dictionary=False, column_encoding={"x": "DELTA_LENGTH_BYTE_ARRAY"}
    )


def _model(change: Callable[[dict], object]) -> Files:
    files = seeds.first_model()
    manifest = json.loads(files["manifest.json"])
    text = json.loads(files.pop(manifest["files"]["model"]["name"]))
    change(text)
    content = json.dumps(text).encode()
    digest = hashlib.sha256(content).hexdigest()
    name = f"model-{digest[:12]}.json"
    manifest["files"]["model"] = {"name": name, "bytes": len(content), "sha256": digest}
    return files | {name: content, "manifest.json": json.dumps(manifest).encode()}


def _wide_csv() -> Files:
    n = 12_000
    return {
        "zebra.csv": (
            ",".join(f"x{k}" for k in range(n)) + ",y_1\n" + "0," * n + "1\n"
        ).encode()
    }


BOMBS: dict[str, tuple[str, Callable[[], Files]]] = {
    "gzip of zeros": ("gzip", lambda: _gzip(_ZERO.encode() + b"0,1\n" * 5 * 10**6)),
    "gzip of lines": ("gzip", lambda: _gzip(b"x,y_1\n" + b"0,1\n" * 4 * 10**6)),
    "bzip2 of zeros": ("bzip2", lambda: _bzip2(bytes(2 * 10**7))),
    "many columns": ("csv", _wide_csv),
    "rows of ones": ("arff", lambda: _arff(_attributes("{1}", 2500), "{}\n")),
    "rows of nothing": ("arff", lambda: _arff(_attributes("{a}", 2500), "{}\n")),
    "rows of labels": (
        "arff",
        lambda: _arff("@relation '-C 2400'\n" + _attributes("{0,1}", 2500), "{}\n"),
    ),
    "texts of many kinds": ("arff", lambda: _arff(_attributes("string", 2), "{1 a,0 b}\n")),
    "deep labels": (
        "mulan",
        lambda: seeds.xml()[0] | {"zebra.xml": b"<a>" * 14_000 + b"</a>" * 14_000},
    ),
    "a repeat at the end": ("libsvm", _long_row),
    "far features and labels": ("libsvm", lambda: {"zebra.svm": b"2999999 2999999:1\n"}),
    "many rows of a far label": ("libsvm", lambda: {"zebra.svm": b"2000\n" + b"1\n" * 45_000}),
    "long header": ("extreme", lambda: {"zebra.txt": b"99999999999 3 3\n0 1:1\n"}),
    "names without letters": ("npz", _many_names),
    "packed zeros": (
        "npz",
        lambda: _zip({"X.npy": seeds._as_npy(np.zeros((10**6, 90), np.int8))}),
    ),
    "packed labels": (
        "npz",
        lambda: _zip(
            {
                "X.npy": seeds._as_npy(np.zeros((10**6, 1), np.int8)),
                "Y.npy": seeds._as_npy(np.full((10**6, 90), 2, np.int8)),
            }
        ),
    ),
    "bzip2 inside": (
        "npz",
        lambda: _zip(
            {"X.npy": seeds._as_npy(np.zeros((10**6, 90), np.int8))}, zipfile.ZIP_BZIP2
        ),
    ),
    "members that overlap": ("npz", _overlapping),
    "rows that repeat": ("parquet", _many_rows),
    "text that repeats": ("parquet", _long_text),
    "columns of zeros": ("parquet", _packed_zeros),
    "delta encoding": ("parquet", _delta),
    "a long key": ("toml", lambda: {"zebra.toml": b"x." * 4000 + b"x = 1\n"}),
    "a longer key": ("toml", lambda: {"zebra.toml": b"x." * 49_000 + b"x = 1\n"}),
    "deep values": ("toml", lambda: {"zebra.toml": b"x = " + b"[" * 4000 + b"]" * 4000}),
    "wide layers": (
        "model",
        lambda: _model(lambda text: text["settings"].update(hidden=[10**9] * 3)),
    ),
    "many layers": (
        "model",
        lambda: _model(lambda text: text["settings"].update(hidden=[1] * 9999)),
    ),
    "many factors": (
        "model",
        lambda: _model(lambda text: text["settings"].update(n_factors=10**9, latent_dim=10**9)),
    ),
    "many draws": (
        "model",
        lambda: _model(lambda text: text["settings"].update(n_draws=10**9, z_draws=10**9)),
    ),
    "many features": ("model", lambda: _model(lambda text: text.update(n_features_in=10**8))),
    "wide rows": (
        "upload",
        lambda: {"upload.csv": pd.DataFrame([[0] * 9000]).to_csv(index=False).encode()},
    ),
    "many uploaded rows": (
        "upload",
        lambda: {"upload.csv": b"depth,acidity,ground\n" + b"1,1,a\n" * 16_000},
    ),
}
"""Reader and files, by what they try."""


def corpus() -> dict[str, tuple[str, Callable[[], Files]]]:
    """All that was ever found, one folder each, below the name of its reader."""
    found = sorted((Path(__file__).parent / "corpus").glob("*/*"))
    return {
        f"{path.parent.name}/{path.name}": (path.parent.name, partial(seeds.folder, path))
        for path in found
    }
