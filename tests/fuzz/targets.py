"""Every reader: valid files, how they are made worse, how it is called."""

import bz2
import gzip
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import pandas as pd
import pyarrow as pa

from fuzz import seeds
from fuzz.mutations import MAX_BYTES, mutated
from fuzz.seeds import Files
from fuzz.structures import changed_model, changed_npy, changed_safetensors, changed_zip
from fuzz.thrift import changed_parquet
from mpvae import load_model
from mpvae.checkpoints import Checkpoint, Kept
from mpvae.choosing import given_settings
from mpvae.data import read_table
from mpvae.errors import MPVAEError
from mpvae.serve.answering import Answers

Change = Callable[[Random, Files, list[Files]], Files]


@dataclass(frozen=True)
class Target:
    """A reader under attack."""

    seeds: Callable[[], list[Files]]
    change: Change
    read: Callable[[Path], object]
    """Called with the folder that holds the files."""


def files_of(name: str, seed: int, number: int) -> Files:
    """Input of a target: the same for the same three."""
    rng = Random(f"{name} {seed} {number}")
    target = TARGETS[name]
    valid = target.seeds()
    return target.change(rng, rng.choice(valid), valid)


def put(files: Files, folder: Path) -> None:
    """Make a folder hold these files and nothing else."""
    for path in folder.iterdir():
        if path.name not in files:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def outcome(name: str, folder: Path) -> tuple[str, str]:
    """What a reader makes of a folder: "accepted", the name of our error, or "find: ...".

    Returns
    -------
    verdict, message : str
        The message is that of the error.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            TARGETS[name].read(folder)
        except MPVAEError as error:
            return _judged(error, folder), str(error)
        except Exception as error:  # noqa: BLE001 this is what is looked for
            return f"find: {type(error).__name__}", str(error)
    return "accepted", ""


def _judged(error: MPVAEError, folder: Path) -> str:
    message = str(error)
    links: list[BaseException] = [error]
    while cause := links[-1].__cause__ or links[-1].__context__:
        links.append(cause)
    if any(isinstance(link, MemoryError | pa.ArrowMemoryError) for link in links):
        return "find: took too much memory"
    names = {
        folder.name,
        *(path.name.split(".")[0].removesuffix("_data") for path in folder.iterdir()),
    }
    if not any(name in message for name in names):
        return "find: the message names no file"
    if not message.isprintable() or len(message) > 700:
        return "find: the message is not one short line"
    return type(error).__name__


def _each(change: Callable[[Random, bytes, list[bytes]], bytes]) -> Change:
    """Change one of the files."""

    def changed(rng: Random, files: Files, valid: list[Files]) -> Files:
        name = rng.choice(sorted(files))
        others = [other[name] for other in valid if name in other]
        return files | {name: change(rng, files[name], others)}

    return changed


def _text(*tokens: bytes) -> Change:
    return _each(lambda rng, data, others: mutated(rng, data, others, tokens))


def _packed(suffix: str) -> Change:
    """Text changed and packed, or what is packed changed; bombs, too."""
    unpack = {"gz": gzip.decompress, "bz2": bz2.decompress}[suffix]
    pack = {"gz": partial(gzip.compress, compresslevel=1, mtime=0), "bz2": bz2.compress}[suffix]

    def changed(rng: Random, data: bytes, others: list[bytes]) -> bytes:
        if rng.random() < 0.5:
            return mutated(rng, data, others)
        text = mutated(rng, unpack(data), [], _CSV)
        if rng.random() < 0.003:
            text += rng.choice((b"\n", b"0,", b"1\n", b'"')) * rng.choice((10**6, 10**7))
        return pack(text)[:MAX_BYTES]

    return _each(changed)


def _one(change: Callable[[Random, bytes], bytes]) -> Change:
    return _each(lambda rng, data, others: change(rng, data))


def _npz(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    return (
        mutated(rng, data, others)
        if rng.random() < 0.3
        else changed_zip(rng, data, changed_npy)
    )


def _model(rng: Random, files: Files, valid: list[Files]) -> Files:
    return changed_model(rng, files)


def _read_parts(folder: Path) -> None:
    read_table(folder, labels="y_*")


def _read_model(folder: Path) -> None:
    """Load, and ask: what loads must not hang or break afterwards."""
    model = load_model(folder)
    levels = model.features_.levels
    row = [["sand" if k in levels else 9.5 for k in range(model.n_features_in_)]]
    X = pd.DataFrame(row * 2, columns=getattr(model, "feature_names_in_", None))
    model.predict_proba(X)


def _read_state(folder: Path) -> None:
    Checkpoint(folder / "zebra.safetensors", seeds.QUESTION, Kept(folder), 0.0).read()


@cache
def _service() -> Answers:
    return Answers(load_model(seeds.FIXTURES / "model_v1"))


def _read_upload(folder: Path) -> None:
    _service().rows_of_csv((folder / "upload.csv").read_bytes())


def _uploads() -> list[Files]:
    rows = seeds.frame()[["depth", "acidity", "ground"]]
    return [{"upload.csv": rows.to_csv(index=False).encode()}]


_CSV = (
    b",", b";", b"\t", b'"', b'""', b"\n", b"\r\n", b"depth", b"y_trout", b"ground", b"NA",
    b"sand", b"true", b"no", b"#", b"1,5", b"2020-01-01", b"18446744073709551616", b",,,,,,,",
    b'"\n"',
)  # fmt: skip
_ARFF = (
    b"@relation", b"@attribute", b"@data", b"numeric", b"string", b"date 'yyyy'", b"{0,1}",
    b"{1,0}", b"{1}", b"{}", b"?", b"%", b"'", b'"', b"\\'", b"-C 2", b"-C -99999999",
    b"{0 1}", b"{0 1, 0 1}", b"\n{}", b"relational", b"@end", b", ", b"{999999999 1}",
    b"{\xd9\xa3 1}",
)  # fmt: skip
_XML = (
    b"<label", b"name=", b"/>", b"</labels>", b"<!DOCTYPE x>", b"<!ENTITY", b"&amp;", b"&#0;",
    b"<![CDATA[", b"<a>" * 3000, b"xmlns=", b"<?", b"utf-16", b"y_a",
)  # fmt: skip
_SPARSE = (
    b":", b",", b" ", b"#", b"\n ", b"1:1", b"0:", b":0", b"2999999:1", b"2999999", b"1,1",
    b"-1:1", b"1:nan", b"1:1e39", b"1 1 1\n", b"999999999 1 1\n", b"4 3000000 3000000\n",
)  # fmt: skip
_TOML = (
    b"=", b"[", b"]", b"[[", b"]]", b"{", b"}", b'"', b'"""', b"'''", b"#", b".", b"lr",
    b"hidden", b"base", b"true", b"inf", b"nan", b"1979-05-27T07:32:00Z", b"0x_f", b"0b1",
    b"\\u0000", b"none", b"a.a.a.a", b"[" * 3000, b"{a=" * 500, b"x." * 3000 + b"x = 1\n",
    b"auto", b"1_0",
)  # fmt: skip

TARGETS: dict[str, Target] = {
    "csv": Target(
        seeds.delimited, _text(*_CSV), lambda d: read_table(d / "zebra.csv", labels="y_*")
    ),
    "tsv": Target(seeds.tabbed, _text(*_CSV), lambda d: read_table(d / "zebra.tsv", labels=2)),
    "gzip": Target(
        lambda: seeds.packed("gz"),
        _packed("gz"),
        lambda d: read_table(d / "zebra.csv.gz", labels="y_*"),
    ),
    "bzip2": Target(
        lambda: seeds.packed("bz2"),
        _packed("bz2"),
        lambda d: read_table(d / "zebra.csv.bz2", labels="y_*"),
    ),
    "parquet": Target(
        seeds.parquet,
        _one(changed_parquet),
        lambda d: read_table(d / "zebra.parquet", labels="y_*"),
    ),
    "parts": Target(seeds.parts, _one(changed_parquet), _read_parts),
    "arff": Target(seeds.arff, _text(*_ARFF), lambda d: read_table(d / "zebra.arff")),
    "mulan": Target(seeds.xml, _text(*_XML), lambda d: read_table(d / "zebra.arff")),
    "npz": Target(seeds.npz, _each(_npz), lambda d: read_table(d / "zebra.npz")),
    "npy": Target(
        seeds.npy, _one(changed_npy), lambda d: read_table(d / "zebra_data.npy", labels=2)
    ),
    "libsvm": Target(seeds.libsvm, _text(*_SPARSE), lambda d: read_table(d / "zebra.svm")),
    "extreme": Target(seeds.extreme, _text(*_SPARSE), lambda d: read_table(d / "zebra.txt")),
    "toml": Target(seeds.toml, _text(*_TOML), lambda d: given_settings(d / "zebra.toml", [])),
    "model": Target(seeds.models, _model, _read_model),
    "state": Target(seeds.states, _one(changed_safetensors), _read_state),
    "upload": Target(_uploads, _text(*_CSV), _read_upload),
}
"""Readers by name."""
