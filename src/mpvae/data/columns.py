"""Which columns are labels and which are features, chosen by name, shell pattern or count."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from mpvae.data.files import listing, one_line
from mpvae.errors import DataError

LabelChoice: TypeAlias = "str | int | Sequence[str] | None"


class ChosenColumns(NamedTuple):
    """Positions of the chosen columns in the file."""

    features: list[int]
    labels: list[int]


def choose_columns(
    names: Sequence[str],
    *,
    labels: LabelChoice,
    exclude: Sequence[str],
    columns: Sequence[str] | None,
    file: str,
) -> ChosenColumns:
    """Positions of the feature and label columns of a file that holds both.

    Parameters
    ----------
    names
        All column names of the file.
    labels
        Names or shell patterns (comma-separated text, or a list); or a count: the last N
        columns, or the first N when negative; or ``None`` for no labels. The order of the
        patterns is the order of the labels.
    exclude
        Names or patterns of feature columns to leave out; not used when ``columns`` is given.
    columns
        The feature columns that must be there, in this order; all others are ignored.
    file
        File name, for messages.
    """
    chosen = choose_labels(names, labels, file=file)
    taken = set(chosen)
    rest = [i for i in range(len(names)) if i not in taken]
    picked = choose_features([names[i] for i in rest], exclude, columns, file=file)
    return ChosenColumns([rest[i] for i in picked], chosen)


def choose_labels(names: Sequence[str], labels: LabelChoice, *, file: str) -> list[int]:
    """Positions of the label columns among ``names``."""
    if labels is None:
        return []
    count = as_count(labels)
    if count is not None:
        if count == 0 or abs(count) > len(names):
            raise DataError(
                f"{file} has {len(names)} columns, so {count} label columns cannot be taken; "
                f"give a count from 1 to {len(names)}, or column names"
            )
        return (
            list(range(len(names)))[-count:] if count > 0 else list(range(len(names)))[:-count]
        )
    patterns = _patterns(labels)
    if not patterns:
        raise DataError(f"{file}: no label columns named; give names, patterns or a count")
    return match_columns(names, patterns, role="label", file=file)


def choose_features(
    names: Sequence[str],
    exclude: Sequence[str],
    columns: Sequence[str] | None,
    *,
    file: str,
) -> list[int]:
    """Positions of the feature columns among ``names``."""
    if columns is None:
        patterns = _patterns(exclude)
        if not patterns and names:
            return list(range(len(names)))
        dropped = set(match_columns(names, patterns, role="feature", file=file))
        kept = [i for i in range(len(names)) if i not in dropped]
        if not kept:
            raise DataError(
                f"{file} has no feature columns left beside the labels; choose fewer label "
                "or excluded columns"
            )
        return kept
    position = {name: i for i, name in enumerate(names)}
    lacking = [name for name in columns if name not in position]
    if lacking:
        raise DataError(
            f"{file} lacks {len(lacking)} of {len(columns)} feature columns: "
            f"{listing(lacking)}; add them, with empty cells where nothing is known"
        )
    return [position[name] for name in columns]


def match_columns(
    names: Sequence[str], patterns: Sequence[str], *, role: str, file: str
) -> list[int]:
    """Positions of the columns that match, pattern by pattern, each position once."""
    position = {name: i for i, name in enumerate(names)}
    found: dict[int, None] = {}  # a set that keeps the order
    for pattern in patterns:
        if pattern in position:  # an exact name may hold *, ? or [
            found[position[pattern]] = None
            continue
        hits = [i for i, name in enumerate(names) if fnmatchcase(name, pattern)]
        if not hits:
            near = difflib.get_close_matches(pattern, names[:10_000], n=3)
            hint = (
                f"did you mean {listing(near)}?"
                if near
                else f"the columns are {listing(names)}"
                if names
                else "no columns are left"
            )
            raise DataError(f"{file} has no {role} column {one_line(pattern)!r}; {hint}")
        found.update(dict.fromkeys(hits))
    return list(found)


def as_count(labels: LabelChoice) -> int | None:
    """Count of label columns, where ``labels`` is a count; otherwise ``None``."""
    if isinstance(labels, str):
        text = labels.strip()
        return int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else None
    return labels if isinstance(labels, int) else None


def check_unique(names: Sequence[str], *, file: str) -> None:
    """Refuse a header with a nameless column or with one name twice."""
    first: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        if not name:
            raise DataError(
                f"{file}: column {number} has no name in the header; name it, or write the "
                "file without row names"
            )
        if name in first:
            raise DataError(
                f"{file}: columns {first[name]} and {number} are both named "
                f"{one_line(name)!r}; rename one of them"
            )
        first[name] = number


def _patterns(choice: str | int | Sequence[str]) -> list[str]:
    if isinstance(choice, int):
        return []
    parts = choice.split(",") if isinstance(choice, str) else choice
    return [part.strip() for part in parts if part.strip()]
