"""Learning from rows that are never all in memory.

One pass finds what features and labels are like and keeps a sample of the rows; then every
epoch is a pass in which rows are read by a thread of its own, mixed in a buffer, and handed
on in batches. Which fold a row is in depends on its number alone, so that all passes agree.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpvae.config import Settings
from mpvae.data.parts import Chunk
from mpvae.distributed import Team, share_of, team
from mpvae.errors import DataError
from mpvae.features import FeatureMap, row_hashes
from mpvae.rows import Batch, Rows, most_judged
from mpvae.statistics import Statistics
from mpvae.trees import leaf_matrix

SAMPLE_VALUES = 2**24
"""Cells of the rows kept in memory: at most so many."""
SAMPLE_ROWS = 20_000
BUCKETS = 60
"""Parts the rows are dealt to; folds are made of them."""
BUFFER_VALUES = 2**22
"""Cells of the rows that are mixed with each other."""
_CHANGED = (
    "there are {} rows to learn from than the {} that were counted at first; a table must stay "
    "as it is, a function must return a new iterator over the same chunks whenever it is called"
)
_Block: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]  # features, labels
_LOOKED_AT = 4096  # rows that tell what codes and features do to a network's labels
_GROUPS_EACH = 4  # row groups for each of several readers, at least
_AT_ONCE = 4  # row groups that take turns: files sorted by something are mixed better
_AHEAD = 2  # buffers prepared while the networks learn from another


class Table(Protocol):
    """A table that can be read again and again, some rows at a time."""

    @property
    def feature_names(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def label_names(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def named(self) -> bool:
        """Whether features have names of their own, not numbers."""
        ...

    @property
    def n_groups(self) -> int:
        """Parts that can be read in any order."""
        ...

    def chunks(self, order: Sequence[int] | None = None, at_once: int = 1) -> Iterator[Chunk]:
        """All rows, a chunk at a time, the parts in this order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """What one pass over a table tells of it."""

    features: FeatureMap
    n_rows: NDArray[np.int64]  # (BUCKETS,)
    positive: NDArray[np.float64]  # (BUCKETS, L): rows that have each label
    observed: NDArray[np.float64]  # (BUCKETS, L): rows of which it is known
    sample_bucket: NDArray[np.int64]  # of the rows kept
    sample_X: pd.DataFrame
    sample_Y: NDArray[np.float32]
    digest: NDArray[np.uint64]  # of all cells and of how they come in chunks, (1,)


def look_over(
    table: Table, seed: int, on_rows: Callable[[int], None] = lambda n: None
) -> Overview:
    """Statistics of features and labels, and a sample of the rows, from one pass."""
    statistics = Statistics(table.feature_names)
    L = len(table.label_names)
    positive, observed = np.zeros((BUCKETS, L)), np.zeros((BUCKETS, L))
    n_rows = np.zeros(BUCKETS, np.int64)
    digest = np.zeros(1, np.uint64)
    width = len(table.feature_names) + L
    kept = _Sample(max(1, min(SAMPLE_ROWS, SAMPLE_VALUES // width)), seed)
    for chunk in table.chunks():
        statistics.add(chunk.X)
        number = chunk.first + np.arange(len(chunk.Y))
        in_bucket = leaf_matrix(bucket_of(number, seed)[:, None], BUCKETS, np.float64).T
        positive += in_bucket @ np.nan_to_num(chunk.Y)
        observed += in_bucket @ ~np.isnan(chunk.Y)
        n_rows += in_bucket.sum(1).astype(np.int64)
        digest += _digest(chunk, number)
        kept.add(number, chunk)
        on_rows(len(chunk.Y))
    features = statistics.features()  # refuses a table without rows
    number, X, Y = kept.rows()
    return Overview(features, n_rows, positive, observed, bucket_of(number, seed), X, Y, digest)


def _digest(chunk: Chunk, number: NDArray[np.int64]) -> np.uint64:
    """Of rows with these numbers: another where a cell, a place or a row group is another."""
    of_X = pd.util.hash_pandas_object(chunk.X, index=False).to_numpy()
    states = np.nan_to_num(chunk.Y, nan=2.0).astype(np.uint64)  # 0, 1, not observed
    of_Y = states @ row_hashes(np.arange(states.shape[1], dtype=np.int64), 1)
    of_rows = (row_hashes(of_X.view(np.int64), 0) + of_Y) * row_hashes(number, 0)
    place = row_hashes(np.array([chunk.first], np.int64), 2 + chunk.group)
    total: np.uint64 = np.append(of_rows, place).sum(dtype=np.uint64)
    return total


def bucket_of(number: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Bucket of each row, from its number alone: folds are made of buckets."""
    return (row_hashes(number, seed) % np.uint64(BUCKETS)).astype(np.int64)


def folded(
    table: Table,
    seen: Overview,
    encode: Callable[[pd.DataFrame], NDArray[np.float32]],
    settings: Settings,
    seed: int,
) -> Iterator[tuple["StreamedRows", Rows | None]]:
    """For each member the rows it learns from, and rows of its own fold to judge it by.

    A single member leaves out ``validation_fraction`` of the rows.
    """
    every = np.arange(BUCKETS)
    M = settings.n_members

    def rows(index: NDArray[np.int64]) -> Rows:
        """Some of the sample, as the networks see it."""
        X = encode(seen.sample_X.iloc[index])
        return Rows(X, seen.sample_Y[index], np.ones(len(index)))

    most = most_judged(seen.sample_Y.shape[1])
    for k in range(M):
        share = settings.validation_fraction
        left_out = every % M == k if M > 1 else every < np.rint(share * BUCKETS)
        outside = left_out[seen.sample_bucket]
        inside = np.flatnonzero(~outside)
        judged = np.flatnonzero(outside)[:most]
        yield (
            StreamedRows(
                table,
                encode,
                int(seen.n_rows[~left_out].sum()),
                (seen.positive[~left_out].sum(0) + 0.5) / (seen.observed[~left_out].sum(0) + 1),
                rows(inside[:: -(-len(inside) // _LOOKED_AT)] if len(inside) else inside),
                left_out,
                seed,
            ),
            rows(judged) if len(judged) else None,
        )


class _Sample:
    """Rows with the smallest of random numbers: each row is as likely as any other."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.parts: list[tuple[NDArray[np.int64], pd.DataFrame, NDArray[np.float32]]] = []
        self.limit = np.uint64(2**64 - 1)
        self.n = 0

    def add(self, number: NDArray[np.int64], chunk: Chunk) -> None:
        keys = row_hashes(number, self.seed + 1)
        taken = np.flatnonzero(keys <= self.limit)
        if len(taken):
            self.parts.append((number[taken], chunk.X.iloc[taken], chunk.Y[taken]))
            self.n += len(taken)
        if self.n > 2 * self.size:
            self._shrink()

    def rows(self) -> tuple[NDArray[np.int64], pd.DataFrame, NDArray[np.float32]]:
        self._shrink()
        (only,) = self.parts
        return only

    def _shrink(self) -> None:
        number = np.concatenate([part[0] for part in self.parts])
        X = pd.concat([part[1] for part in self.parts], ignore_index=True)
        Y = np.concatenate([part[2] for part in self.parts])
        keys = row_hashes(number, self.seed + 1)
        chosen = np.sort(np.argsort(keys, kind="stable")[: self.size])
        if len(chosen) == self.size:
            self.limit = keys[chosen].max()
        self.parts = [(number[chosen], X.iloc[chosen].reset_index(drop=True), Y[chosen])]
        self.n = len(chosen)


@dataclass(frozen=True, slots=True, eq=False)
class StreamedRows:
    """Rows to learn from that are read anew in every epoch."""

    table: Table
    encode: Callable[[pd.DataFrame], NDArray[np.float32]]  # as the networks see features
    n_rows: int
    share: NDArray[np.float64]  # (L,): prevalence
    sample: Rows
    left_out: NDArray[np.bool_]  # (BUCKETS,): not to be learnt from
    seed: int  # of the buckets

    @property
    def n_features(self) -> int:
        """Columns as the networks see them."""
        return self.sample.n_features

    @property
    def n_labels(self) -> int:
        """Labels."""
        return len(self.share)

    def __len__(self) -> int:
        return self.n_rows

    def prevalence(self) -> NDArray[np.float64]:
        """Share of the rows that have each label."""
        return self.share

    def batches(
        self, size: int, like: Tensor, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """All rows once, mixed; of several processes each gets its share of every batch.

        Where there are row groups enough, each reads its share of them alone. These need not
        have equally many rows: some rows are then seen twice, or not at all, in an epoch.
        """
        seed = int(torch.randint(2**62, (), generator=generator))
        us, n = team(), len(self)
        apart = us.size > 1 and self.table.n_groups >= _GROUPS_EACH * us.size
        sizes = [min(size, n - start) for start in range(0, n, size)]
        if apart:
            sizes = [len(range(k)[share_of(k, us)]) for k in sizes]
        with closing(_ahead(lambda: self._mixed(seed, us if apart else Team()))) as blocks:
            for X, Y in _pieces(blocks, sizes, all_of_them=not apart):
                ours = slice(None) if apart else share_of(len(Y), us)
                yield _tensors(X[ours], Y[ours], like)

    def _mixed(self, seed: int, reader: Team) -> Iterator[_Block]:
        """Blocks of mixed rows: of a full buffer one half is handed on, the other stays.

        One of several readers has its share of the row groups, and begins again at their end.
        """
        rng = np.random.default_rng(seed)
        groups = rng.permutation(self.table.n_groups).tolist()[reader.rank :: reader.size]
        yield from self._mixed_once(groups, rng)
        while reader.size > 1:
            yield from self._mixed_once(groups, rng)

    def _mixed_once(self, groups: list[int], rng: np.random.Generator) -> Iterator[_Block]:
        capacity = max(1, BUFFER_VALUES // (self.n_features + self.n_labels))
        held: list[_Block] = []
        n = 0
        for chunk in self.table.chunks(groups, _AT_ONCE):
            X, Y = chunk.X, chunk.Y
            if self.left_out.any():
                bucket = bucket_of(chunk.first + np.arange(len(Y)), self.seed)
                stay = np.flatnonzero(~self.left_out[bucket])
                X, Y = X.iloc[stay], Y[stay]
            step = max(2048, capacity // 4)  # no more at once, however large the chunks are
            for start in range(0, len(Y), step):
                piece = slice(start, start + step)
                held.append((self.encode(X.iloc[piece]), Y[piece]))
                n += len(held[-1][1])
                if n >= capacity:
                    order = rng.permutation(n)
                    X_all, Y_all = _joined(held)
                    go, stay = order[n // 2 :], order[: n // 2]
                    held, n = [(X_all[stay], Y_all[stay])], len(stay)
                    yield X_all[go], Y_all[go]
        if n:
            X_all, Y_all = _joined(held)
            order = rng.permutation(n)
            yield X_all[order], Y_all[order]


def _pieces(
    blocks: Iterator[_Block], sizes: list[int], *, all_of_them: bool
) -> Iterator[_Block]:
    """Rows of these numbers, one after the other, from blocks of any: all, and no more."""
    rest: _Block | None = None
    for size in sizes:
        while rest is None or len(rest[1]) < size:
            block = next(blocks, None)
            if block is None:
                raise DataError(_CHANGED.format("fewer", sum(sizes)))
            rest = block if rest is None else _joined([rest, block])
        yield rest[0][:size], rest[1][:size]
        rest = rest[0][size:], rest[1][size:]
    if all_of_them and ((rest is not None and len(rest[1])) or next(blocks, None) is not None):
        raise DataError(_CHANGED.format("more", sum(sizes)))


def _joined(blocks: list[_Block]) -> _Block:
    X, Y = zip(*blocks, strict=True)
    return np.concatenate(X), np.concatenate(Y)


def _tensors(X: NDArray[np.float32], Y: NDArray[np.float32], like: Tensor) -> Batch:
    return Batch(
        torch.from_numpy(X).to(like),
        torch.from_numpy(Y).to(like),
        torch.ones(len(Y)).to(like),
    )


def _ahead(make: Callable[[], Iterator[Any]]) -> Generator[Any]:
    """Items of an iterator that a thread of its own keeps some steps ahead."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(kind: str, item: Any) -> None:
        while not stopped.is_set():
            try:
                ready.put((kind, item), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in make():
                put("item", item)
                if stopped.is_set():
                    return
            put("end", None)
        except BaseException as error:  # noqa: BLE001  raised where the items are wanted
            put("error", error)

    thread = threading.Thread(target=work, name="mpvae-reader", daemon=True)
    thread.start()
    try:
        while True:
            kind, item = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
