"""The ARFF grammar: attributes, then dense or sparse rows, as numbers."""

import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from mpvae.data.files import one_line
from mpvae.data.sparse import checked_csr
from mpvae.errors import DataError

MAX_IMPLICIT = 2**23
"""Largest number of cells that sparse rows may leave out and that are not 0."""


@dataclass(slots=True)
class Attribute:
    """A column: numeric, or nominal with its values.

    Attributes
    ----------
    name : str
        Name of the column.
    categories : list of str
        Values of a nominal or text column, in order; empty for numbers.
    is_numeric : bool
        Whether cells are stored as their own number: numeric columns, and nominal ones whose
        values are 0 and 1. Cells of other columns are stored as positions in ``categories``.
    grows : bool
        Whether new values are added as they come (text columns).
    """

    name: str
    categories: list[str]
    is_numeric: bool
    grows: bool = False
    codes: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for position, category in enumerate(self.categories):
            self.codes[category] = float(category) if self.is_numeric else float(position)

    def encode(self, token: str) -> float:
        """Code that stands for a cell; ``ValueError`` if the cell is not allowed."""
        if token == "?":
            return math.nan
        value = _unquote(token)
        if self.is_numeric and not self.categories:
            number = float(value)
            if "_" in value or not math.isfinite(number):
                raise ValueError
            return number
        if value not in self.codes:
            if not self.grows:
                raise ValueError
            self.codes[value] = float(len(self.categories))
            self.categories.append(value)
        return self.codes[value]

    def show(self, code: float) -> object:
        """Cell that a number stands for."""
        if self.is_numeric or math.isnan(code):
            return code
        return self.categories[int(code)]


@dataclass(frozen=True, slots=True)
class ArffContent:
    """What an ARFF file holds: ``values`` (n, A) by attribute, and the line of each row."""

    relation: str
    attributes: list[Attribute]
    values: NDArray[np.float64] | csr_array
    lines: list[int]


def parse_arff(text: str, *, file: str) -> ArffContent:
    """Attributes and rows of an ARFF text.

    In a sparse row, a column that is not named has the number 0 or, when nominal, the first of
    its values, as in WEKA.

    Raises
    ------
    DataError
        With the number of the line that breaks the grammar.
    """
    lines = _content_lines(text)
    relation, attributes = _parse_header(lines, file)
    first = next(lines, None)
    if first is None:
        raise DataError(f"{file} has no rows after @data; give at least one row of data")
    if first[1].startswith("{"):
        return _parse_sparse(first, lines, relation, attributes, file)
    return _parse_dense(first, lines, relation, attributes, file)


Line = tuple[int, str]

_ITEM = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_ATTRIBUTE = re.compile(rf"@attribute\s++({_ITEM}|[^\s'\"{{]++)\s*+(.+)", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(.)")
_NUMERIC = {"numeric", "real", "integer"}


def _content_lines(text: str) -> Iterator[Line]:
    # not splitlines(): names may hold rare characters that Unicode counts as breaks
    for number, line in enumerate(
        text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1
    ):
        stripped = line.strip()
        if stripped and not stripped.startswith("%"):
            yield number, stripped


def _parse_header(lines: Iterator[Line], file: str) -> tuple[str, list[Attribute]]:
    relation, attributes = "", []
    for number, line in lines:
        keyword = line.split(None, 1)[0].lower()
        if keyword == "@relation":
            relation = line[len(keyword) :].strip().strip("'\"")
        elif keyword == "@attribute":
            attributes.append(_parse_attribute(line, number, file))
        elif keyword == "@data":
            if not attributes:
                raise DataError(f"{file} line {number}: @data comes before any @attribute")
            return relation, attributes
        else:
            raise DataError(
                f"{file} line {number}: expected @relation, @attribute or @data, got "
                f"{one_line(line, 40)!r}; check that this is an ARFF file"
            )
    raise DataError(f"{file} has no @data line; check that the file is complete")


def _parse_attribute(line: str, number: int, file: str) -> Attribute:
    match = _ATTRIBUTE.fullmatch(line)
    if match is None:
        raise DataError(
            f"{file} line {number}: expected '@attribute name type', got {one_line(line, 40)!r}"
        )
    name, kind = _unquote(match.group(1)), match.group(2).strip()
    word = kind.split(None, 1)[0].lower()
    if word in _NUMERIC:
        return Attribute(name, [], is_numeric=True)
    if word in {"string", "date"}:
        return Attribute(name, [""], is_numeric=False, grows=True)
    if kind.startswith("{") and kind.endswith("}"):
        cells = _split_cells(kind[1:-1])
        if cells is not None:
            categories = [_unquote(cell) for cell in cells]
            if len(set(categories)) == len(categories):
                return Attribute(name, categories, is_numeric=set(categories) <= {"0", "1"})
    raise DataError(
        f"{file} line {number}: attribute {one_line(name)} has the type {one_line(kind, 40)!r}"
        "; use numeric, string or a list {a,b} of distinct values"
    )


def _parse_dense(
    first: Line, lines: Iterator[Line], relation: str, attributes: list[Attribute], file: str
) -> ArffContent:
    values, numbers = array("d"), []
    line: Line | None = first
    while line is not None:
        number, text = line
        cells = _split_cells(text)
        if cells is None or text.startswith("{"):
            raise DataError(
                f"{file} line {number} cannot be cut into cells; check quotes and braces"
            )
        if len(cells) != len(attributes):
            raise DataError(
                f"{file} line {number} has {len(cells)} cells but there are {len(attributes)} "
                "attributes; give one cell per attribute"
            )
        values.extend(
            _encode(attribute, cell, number, file)
            for attribute, cell in zip(attributes, cells, strict=True)
        )
        numbers.append(number)
        line = next(lines, None)
    matrix = np.frombuffer(values, dtype=np.float64).reshape(len(numbers), len(attributes))
    return ArffContent(relation, attributes, matrix, numbers)


def _parse_sparse(
    first: Line, lines: Iterator[Line], relation: str, attributes: list[Attribute], file: str
) -> ArffContent:
    values, indices, pointers = array("d"), array("q"), array("q", [0])
    numbers: list[int] = []
    implicit_ones = [i for i, a in enumerate(attributes) if a.categories[:1] == ["1"]]
    implicit_ones = [i for i in implicit_ones if attributes[i].is_numeric]
    line: Line | None = first
    while line is not None:
        number, text = line
        if not (text.startswith("{") and text.endswith("}")):
            raise DataError(
                f"{file} line {number} is not a sparse row {{...}} as the first row is; write "
                "all rows in one way"
            )
        row = _parse_sparse_row(text[1:-1], attributes, number, file)
        for i in implicit_ones:
            row.setdefault(i, 1.0)
        indices.extend(row.keys())
        values.extend(row.values())
        if len(numbers) * len(implicit_ones) > MAX_IMPLICIT:
            raise DataError(
                f"{file} line {number}: {len(implicit_ones)} columns are 1 in every row that "
                f"does not name them, more than {MAX_IMPLICIT:,} cells; write {{0,1}} for "
                "{1,0} and name those that are 1"
            )
        pointers.append(len(values))
        numbers.append(number)
        line = next(lines, None)
    matrix = checked_csr(
        np.frombuffer(values, dtype=np.float64) if values else np.empty(0),
        np.frombuffer(indices, dtype=np.int64) if indices else np.empty(0, dtype=np.int64),
        np.frombuffer(pointers, dtype=np.int64),
        (len(numbers), len(attributes)),
        file=file,
    )
    matrix.eliminate_zeros()
    return ArffContent(relation, attributes, matrix, numbers)


def _parse_sparse_row(
    text: str, attributes: list[Attribute], number: int, file: str
) -> dict[int, float]:
    row: dict[int, float] = {}
    if not text.strip():
        return row
    pairs = _split_cells(text.replace("\t", " "))
    if pairs is None:
        raise DataError(f"{file} line {number} cannot be cut into pairs; check the quotes")
    for pair in pairs:
        index, _, cell = pair.partition(" ")
        if not index.isdecimal() or len(index) > 9 or int(index) >= len(attributes):
            raise DataError(
                f"{file} line {number}: {one_line(pair, 40)!r} does not begin with an "
                f"attribute number from 0 to {len(attributes) - 1}"
            )
        if int(index) in row:
            raise DataError(f"{file} line {number} names attribute {index} twice; drop one")
        row[int(index)] = _encode(attributes[int(index)], cell.strip(), number, file)
    return row


def _split_cells(text: str) -> list[str] | None:
    """Text between commas, quotes kept; ``None`` where a quote does not close."""
    if "'" not in text and '"' not in text:
        return [cell.strip() for cell in text.split(",")]
    cells, start, quote, escaped = [], 0, "", False
    for position, character in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = character == "\\"
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == ",":
            cells.append(text[start:position].strip())
            start = position + 1
    return None if quote else [*cells, text[start:].strip()]


def _encode(attribute: Attribute, cell: str, number: int, file: str) -> float:
    try:
        return attribute.encode(cell)
    except ValueError:
        expected = (
            "a number"
            if not attribute.categories
            else f"one of {one_line(', '.join(attribute.categories), 60)}"
        )
        raise DataError(
            f"{file} line {number}, column {one_line(attribute.name)}: {one_line(cell, 40)!r} "
            f"is not {expected}; write ? for a missing value"
        ) from None


def _unquote(token: str) -> str:
    if len(token) >= 2 and token[0] in "'\"" and token[-1] == token[0]:
        return _ESCAPE.sub(r"\1", token[1:-1])
    return token
