"""The data sets of the paper, or what stands in for them, some more, and their stored splits.

An official test set stays the test set; a tenth of the official training rows is held out for
validation. Where there is no official split, 80/10/10, another one for each seed: a test set of
143 rows, as sider's, says little by itself. Splits are drawn once, stratified by labels, and
kept in ``benchmarks/splits`` (part of each row: 0 train, 1 validation, 2 test), so that every
method and every later run sees the same rows.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from mpvae.data import LabelledTable, data_folder, load_yeast, read_table, stratified_split

ROOT = Path(__file__).parents[2]
SPLITS = ROOT / "benchmarks" / "splits"
PUBLISHED = ROOT / "benchmarks" / "published.csv"


@dataclass(frozen=True)
class Source:
    """How a data set of ours relates to one of the paper's."""

    paper: str = ""  # name in the paper's tables
    same: bool = False  # whether it is that data set, not a stand-in
    official: bool = False  # whether its test rows are given
    note: str = ""


SOURCES = {
    "yeast": Source("yeast", same=True, official=True),
    "scene": Source("scene", same=True, official=True),
    "sider": Source(
        "sider",
        same=True,
        note="same drugs and labels; the authors' 38 character counts are approximated",
    ),
    "ebird_us32": Source(
        "eBird", note="8,000 checklists of 2019, 32 species; many rows have no label at all"
    ),
    "fish_ebs": Source("fish", note="13,370 trawls of the Eastern Bering Sea, 43 species"),
    "bibtex": Source("bibtex", same=True, official=True),
    "mirflickr_tags": Source(
        "mirflickr", note="same photo collection, but user tags as features and 24 concepts"
    ),
    "delicious": Source("delicious", same=True, official=True),
    "imdb": Source("nuswide", note="120,919 plot summaries, 28 genres: the large set"),
}
"""By size, small ones first: the order in which cells are run."""

OTHERS = {
    "norberg_birds": Source(official=True),
    "norberg_vegetation": Source(official=True),
    "yahoo_arts": Source(official=True),
    "yahoo_science": Source(official=True),
    "eco_butterflies": Source(),
    "eco_fungi_beech": Source(),
    "stackex_chess": Source(),
    "rcv1subset1": Source(),
    "disdat_nz_plants": Source(),
    "ng20": Source(),
}
"""Not of the paper: more tables for the comparison with peers."""

EVERY = SOURCES | OTHERS


class Part(NamedTuple):
    """Features (DataFrame or CSR array) and labels (n, L) of some rows."""

    X: object
    Y: np.ndarray


class Parts(NamedTuple):
    train: Part
    validation: Part
    test: Part


def read(name: str) -> LabelledTable:
    """The whole table; yeast comes with a package where the data folder is missing."""
    folder = data_folder() or ROOT.parent / "shared" / "data"
    file = folder / f"{name}.npz"
    if not file.exists() and name == "yeast":
        table = load_yeast()  # the same rows, test first
        return table.rows(np.concatenate([table.splits["train"], table.splits["test"]]))
    return read_table(file)


def load(name: str, seed: int = 0, *, noise: float = 0.0) -> Parts:
    """Train, validation and test rows; ``noise`` is the share of labels flipped, but in test.

    Labels are int64: scikit-learn permutes the columns of narrower ones beyond 127 labels.
    """
    table = read(name)
    part = split(name, seed)
    if len(part) != len(table):
        raise ValueError(f"{name} has {len(table)} rows, its stored split {len(part)}")
    found = []
    for code in range(3):
        rows = table.rows(np.flatnonzero(part == code))
        Y = rows.labels().to_numpy().astype(np.int64)
        if noise and code < 2:
            generator = np.random.default_rng([seed, code, int(1000 * noise)])
            flip = generator.random(Y.shape) < noise
            Y = np.where(flip, 1 - Y, Y)
        found.append(Part(rows.features(), Y))
    return Parts(*found)


def split(name: str, seed: int = 0) -> np.ndarray:
    """Part of every row; drawn and stored when asked for the first time."""
    file = SPLITS / (f"{name}.npz" if EVERY[name].official else f"{name}-{seed}.npz")
    if file.exists():
        with np.load(file) as stored:
            return stored["part"]
    table = read(name)
    Y = table.labels().to_numpy()
    part = np.zeros(len(table), np.uint8)
    if EVERY[name].official:
        part[table.splits["test"]] = 2
        rows = np.flatnonzero(part == 0)
        held = stratified_split(Y[rows], {"train": 0.9, "validation": 0.1}, seed=0)
        part[rows[held["validation"]]] = 1
    else:
        shares = {"train": 0.8, "validation": 0.1, "test": 0.1}
        for code, index in enumerate(stratified_split(Y, shares, seed=seed).values()):
            part[index] = code
    SPLITS.mkdir(exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}.npz")
    np.savez_compressed(temporary, part=part)
    temporary.replace(file)
    return part


def join(a: Part, b: Part) -> Part:
    """The rows of both."""
    if isinstance(a.X, pd.DataFrame):
        X = pd.concat([a.X, b.X], ignore_index=True)
    else:
        import scipy.sparse as sp

        X = sp.csr_array(sp.vstack([a.X, b.X]))
    return Part(X, np.vstack([a.Y, b.Y]))


@cache
def published() -> dict[tuple[str, str, str], float]:
    """Score by (metric, data set in the paper, method); Bai, Kong and Gomes (2020)."""
    table = pd.read_csv(PUBLISHED, comment="#")
    keys = zip(table["metric"], table["dataset"], table["method"], strict=True)
    return dict(zip(keys, table["score"], strict=True))
