"""Data sets in ARFF, the text format of WEKA, MEKA and Mulan."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mpvae.data.arff_parser import ArffContent, Attribute, parse_arff
from mpvae.data.cells import LABEL_WORDS, as_float32, check_labels, tight_labels
from mpvae.data.columns import LabelChoice, check_unique, choose_columns
from mpvae.data.files import bare_name, listing, read_text
from mpvae.data.mulan_xml import label_names_of_xml
from mpvae.data.sparse import MAX_DENSE_LABELS, labels_from_csr
from mpvae.data.table import Features, LabelledTable, Labels
from mpvae.errors import DataError

_MEKA_OPTION = re.compile(r"(?<!\S)-C\s+(-?\d{1,8})(?!\d)")
_PART_OF_NAME = re.compile(r"[-_.](train|test|val|valid|validation|full)\d*$", re.IGNORECASE)


def read_arff(
    path: Path,
    *,
    labels: LabelChoice = None,
    exclude: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> LabelledTable:
    """Table in an ``.arff`` file, with dense or sparse rows, compressed or not.

    The labels are, in this order: those given by ``labels``; those listed in the Mulan file
    beside it (``yeast.xml`` for ``yeast.arff`` and ``yeast-train.arff``); those counted by
    MEKA's ``-C N`` in the relation's name (first N attributes, last N when negative). Features
    become a float32 array, CSR when rows are sparse, or a DataFrame when some are nominal with
    values other than 0 and 1. The parameters are those of `mpvae.data.read_table`.
    """
    file = path.name
    content = parse_arff(read_text(path), file=file)
    names = [attribute.name for attribute in content.attributes]
    check_unique(names, file=file)
    if labels is None:
        labels = _declared_labels(path, content.relation, names)
    chosen = choose_columns(names, labels=labels, exclude=exclude, columns=columns, file=file)
    return LabelledTable(
        X=_features(content, chosen.features, file),
        Y=_labels(content, chosen.labels, file) if chosen.labels else None,
        feature_names=tuple(names[i] for i in chosen.features),
        label_names=tuple(names[i] for i in chosen.labels),
        name=bare_name(path)[0],
    )


def _declared_labels(path: Path, relation: str, names: list[str]) -> LabelChoice:
    stem = bare_name(path)[0]
    for candidate in dict.fromkeys((stem, _PART_OF_NAME.sub("", stem))):
        xml = path.with_name(f"{candidate}.xml")
        if xml.is_file():
            wanted = label_names_of_xml(xml)
            known = set(names)
            lacking = [name for name in wanted if name not in known]
            if lacking:
                raise DataError(
                    f"{path.name} lacks {len(lacking)} of {len(wanted)} labels that {xml.name} "
                    f"lists: {listing(lacking)}; name the label columns instead"
                )
            return wanted
    option = _MEKA_OPTION.search(relation)
    # MEKA counts labels from the front, read_table from the back
    return -int(option.group(1)) if option else None


def _features(content: ArffContent, chosen: list[int], file: str) -> Features:
    attributes = [content.attributes[i] for i in chosen]
    names = [attribute.name for attribute in attributes]
    if all(attribute.is_numeric for attribute in attributes):
        if isinstance(content.values, np.ndarray):
            return as_float32(content.values[:, chosen], names=names, file=file)
        X = content.values[:, chosen]
        X.data = as_float32(X.data[:, None], names=("of a feature",), file=file)[:, 0]
        return X
    _check_cells(len(content.lines), len(chosen), file)
    return pd.DataFrame(
        {
            attribute.name: _frame_column(attribute, values)
            for attribute, values in zip(attributes, _columns(content, chosen), strict=True)
        }
    )


def _columns(content: ArffContent, chosen: list[int]) -> Iterator[NDArray[np.float64]]:
    """The chosen columns, one by one."""
    values = content.values
    if isinstance(values, np.ndarray):
        yield from (values[:, i] for i in chosen)
    else:
        by_column = values.tocsc()
        yield from (by_column[:, [i]].toarray()[:, 0] for i in chosen)


def _frame_column(
    attribute: Attribute, codes: NDArray[np.float64]
) -> "pd.Categorical[str] | NDArray[np.float64]":
    if attribute.is_numeric:
        return codes
    positions = np.where(np.isnan(codes), -1, codes).astype(np.int64)
    return pd.Categorical.from_codes(positions, categories=pd.Index(attribute.categories))


def _labels(content: ArffContent, chosen: list[int], file: str) -> Labels:
    attributes = [content.attributes[i] for i in chosen]
    plain = all(attribute.is_numeric for attribute in attributes)
    if plain and not isinstance(content.values, np.ndarray):
        Y = content.values[:, chosen]
        if Y.shape[0] * Y.shape[1] > MAX_DENSE_LABELS:
            return labels_from_csr(Y, file=file)
    _check_cells(len(content.lines), len(chosen), file)
    block = content.values[:, chosen]
    matrix = block if isinstance(block, np.ndarray) else block.toarray()
    for column, attribute in enumerate(attributes):
        codes = matrix[:, column]
        if not attribute.is_numeric:
            meaning = [LABEL_WORDS.get(c.lower(), -1.0) for c in attribute.categories]
            known = ~np.isnan(codes)
            codes[known] = np.take(meaning, codes[known].astype(np.int64))
        check_labels(
            codes,
            name=attribute.name,
            cell=partial(_cell, content, chosen[column]),
            where=lambda row: f"line {content.lines[row]}",
            file=file,
        )
    return tight_labels(matrix)


def _cell(content: ArffContent, column: int, row: int) -> object:
    return content.attributes[column].show(float(content.values[row, column]))


def _check_cells(n_rows: int, n_columns: int, file: str) -> None:
    # dense rows have no more cells than the file has bytes; sparse ones may
    if n_rows * n_columns > MAX_DENSE_LABELS:
        raise DataError(
            f"{file}: {n_rows} rows x {n_columns} columns are too many to hold with nominal "
            "columns among them; choose fewer columns, or write them as numbers"
        )
