import pytest

from mpvae.data.columns import choose_columns
from mpvae.errors import DataError

NAMES = ["id", "ph", "slope", "species_a", "species_b", "other"]


def choose(labels, exclude=(), columns=None):
    chosen = choose_columns(
        NAMES, labels=labels, exclude=exclude, columns=columns, file="sites.csv"
    )
    return [NAMES[i] for i in chosen.features], [NAMES[i] for i in chosen.labels]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("species_*,other", ["species_a", "species_b", "other"]),
        (["other", "species_?"], ["other", "species_a", "species_b"]),
        ("species_b,species_*", ["species_b", "species_a"]),
        (2, ["species_b", "other"]),
        ("2", ["species_b", "other"]),
        (-2, ["id", "ph"]),
        ("-2", ["id", "ph"]),
        (None, []),
    ],
)
def test_labels_are_chosen_by_name_pattern_or_count(labels, expected):
    features, chosen = choose(labels)
    assert chosen == expected
    assert features == [name for name in NAMES if name not in expected]


def test_excluded_columns_are_no_features():
    assert choose("species_*", exclude=["id", "o*"])[0] == ["ph", "slope"]


def test_required_columns_come_in_the_asked_order_and_others_are_ignored():
    assert choose(None, exclude=["nowhere"], columns=["slope", "ph"])[0] == ["slope", "ph"]


def test_a_name_with_pattern_characters_is_matched_as_it_stands():
    names = ["x", "sp[1]"]
    chosen = choose_columns(names, labels=["sp[1]"], exclude=(), columns=None, file="f.csv")
    assert chosen.labels == [1]


@pytest.mark.parametrize(
    ("labels", "exclude", "columns", "message"),
    [
        ("speces_a", (), None, "no label column 'speces_a'; did you mean species_a"),
        ("zzz*", (), None, "no label column 'zzz.'; the columns are id, ph"),
        (0, (), None, "6 columns, so 0 label columns"),
        (7, (), None, "6 columns, so 7 label columns"),
        (6, (), None, "no feature columns left"),
        (" , ", (), None, "no label columns named"),
        (1, ["other"], None, "no feature column 'other'"),
        (None, (), ["ph", "x1", "x2"], "sites.csv lacks 2 of 3 feature columns: x1, x2"),
    ],
)
def test_impossible_choices_are_explained(labels, exclude, columns, message):
    with pytest.raises(DataError, match=message):
        choose(labels, exclude, columns)
