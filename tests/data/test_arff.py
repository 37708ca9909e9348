import bz2
import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from mpvae.data import LabelledTable, read_table
from mpvae.errors import DataError

DENSE = """% a comment
@RELATION 'Toy: -C 2'

@attribute 'first label' {0,1}
@Attribute "it\\'s" {0, 1}
@attribute x1 numeric
@attribute x2 REAL
@data
0,1,0.5,-2
1,0,?,1e3
% between
1,1,0,3
"""
SPARSE = """@relation toy
@attribute x0 numeric
@attribute x1 numeric
@attribute l0 {0,1}
@attribute l1 {0,1}
@data
{0 2.5, 3 1}
{}
{1 -1,2 1,3 1}
"""
XML = (
    '<labels xmlns="http://mulan.sourceforge.net/labels">'
    '<label name="l1"/><label name="l0"/></labels>'
)


def test_dense_rows_round_trip_with_the_labels_of_meka(write):
    table = read_table(write("toy.arff", DENSE))
    assert table.label_names == ("first label", "it's")
    assert table.feature_names == ("x1", "x2")
    assert (table.X.dtype, table.Y.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(table.X, [[0.5, -2], [np.nan, 1000], [0, 3]])
    assert table.Y.tolist() == [[0, 1], [1, 0], [1, 1]]
    assert table.name == "toy"


def test_a_negative_meka_count_means_the_last_attributes(write):
    content = SPARSE.replace("@relation toy", "@relation 'toy: -C -2 -split 1'")
    assert read_table(write("toy.arff", content)).label_names == ("l0", "l1")


def test_sparse_rows_round_trip_with_the_labels_of_mulan(write):
    write("toy.xml", XML)
    for name in ("toy.arff", "toy-train.arff", "toy_test.arff"):
        table = read_table(write(name, SPARSE))
        assert isinstance(table.X, csr_array)
        assert table.X.dtype == np.float32
        np.testing.assert_array_equal(table.X.toarray(), [[2.5, 0], [0, 0], [0, -1]])
        assert table.label_names == ("l1", "l0")
        assert table.Y.tolist() == [[1, 0], [0, 0], [1, 1]]


def test_the_labels_argument_overrides_what_the_file_says(write):
    write("toy.xml", XML)
    assert read_table(write("toy.arff", SPARSE), labels="l0").label_names == ("l0",)
    assert read_table(write("other.arff", DENSE), labels=["it's"]).label_names == ("it's",)
    assert read_table(write("third.arff", SPARSE)).Y is None


def test_compressed_files_are_read(write):
    for name, pack in (("toy.arff.gz", gzip.compress), ("toy.arff.bz2", bz2.compress)):
        assert read_table(write(name, pack(DENSE.encode()))).Y.shape == (3, 2)


def test_other_nominal_features_give_a_data_frame(write):
    content = """@relation t
@attribute soil {clay,'fine sand'}
@attribute depth numeric
@attribute note string
@attribute y {no,yes}
@data
'fine sand',1,'a, b',yes
?,2,?,no
clay,3,c,?
"""
    table = read_table(write("t.arff", content), labels="y")
    assert isinstance(table.X, pd.DataFrame)
    assert table.X["soil"].astype(object).tolist()[::2] == ["fine sand", "clay"]
    assert pd.isna(table.X["soil"][1])
    assert table.X["depth"].tolist() == [1, 2, 3]
    assert table.X["note"][0] == "a, b"
    np.testing.assert_array_equal(table.Y, [[1], [0], [np.nan]])


def test_an_omitted_sparse_cell_is_the_first_nominal_value(write):
    content = """@relation t
@attribute x {1,0}
@attribute soil {clay,sand}
@attribute y {1,0}
@data
{0 0}
{1 sand,2 0}
"""
    table = read_table(write("t.arff", content), labels="y")
    assert table.X["x"].tolist() == [0, 1]
    assert table.X["soil"].tolist() == ["clay", "sand"]
    assert table.Y.tolist() == [[1], [0]]


HEADER = "@relation t\n@attribute x numeric\n@attribute y {0,1}\n@attribute c {a,b}\n@data\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + "1,0,a\n2,1\n", "line 7 has 2 cells but there are 3 attributes"),
        (HEADER + "x,0,a\n", "line 6, column x: 'x' is not a number; write ?"),
        (HEADER + "inf,0,a\n", "line 6, column x: 'inf' is not a number"),
        (HEADER + "1_0,0,a\n", "line 6, column x: '1_0' is not a number"),
        (HEADER + "1,2,a\n", "line 6, column y: '2' is not one of 0, 1"),
        (HEADER + "1,0,z\n", "line 6, column c: 'z' is not one of a, b"),
        (HEADER + "1,0,'a\n", "line 6 cannot be cut into cells; check quotes"),
        (HEADER + "1,0,a\n{0 1}\n", "line 7 cannot be cut into cells"),
        (HEADER + "{0 1}\n1,0,a\n", "line 7 is not a sparse row"),
        (
            HEADER + "{3 1}\n",
            "line 6: '3 1' does not begin with an attribute number from 0 to 2",
        ),
        (HEADER + "{0 1,0 2}\n", "line 6 names attribute 0 twice"),
        (HEADER + "{0 1,}\n", "line 6: '' does not begin with an attribute number"),
        (HEADER + "{2 'a}\n", "line 6 cannot be cut into pairs"),
        (HEADER, "no rows after @data"),
        ("@relation t\n@attribute x numeric\n", "no @data line"),
        ("@relation t\n@data\n1\n", "line 2: @data comes before any @attribute"),
        ("hello\n", "line 1: expected @relation"),
        ("@attribute x\n@data\n1\n", "line 1: expected '@attribute name type'"),
        (
            "@attribute x relational\n@data\n1\n",
            "line 1: attribute x has the type 'relational'",
        ),
        ("@attribute x {a,a}\n@data\na\n", "line 1: attribute x has the type"),
        ("@attribute x real\n@attribute x real\n@data\n1,1\n", "columns 1 and 2 are both"),
        ("@attribute x real\n@attribute y real\n@data\n1e300,1\n", "too large"),
        (
            "@attribute x real\n@attribute y real\n@data\n1,0\n1,3\n",
            "line 5, column y: .* counts",
        ),
        ("@attribute x real\n@attribute y {a,1}\n@data\n1,a\n", "line 4, column y: .*'a'"),
    ],
)
def test_broken_grammar_is_refused_with_its_line(write, content, message):
    with pytest.raises(DataError, match=message.replace("?", r"\?")) as raised:
        read_table(write("toy.arff", content), labels="y" if "attribute y" in content else None)
    assert "toy.arff" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ('<!DOCTYPE x [<!ENTITY a "b">]>' + XML, "toy.xml declares a document type"),
        (XML.encode("utf-16"), "toy.xml is not UTF-8"),
        ("<labels><label", "toy.xml is not XML"),
        ("<labels/>", "toy.xml lists no label names"),
        (XML.replace("l0", "zz"), "lacks 1 of 2 labels that toy.xml lists: zz"),
        (b" " * (16 * 1024**2 + 1), "holds more than"),
    ],
)
def test_unfit_label_files_are_refused(write, xml, message):
    write("toy.xml", xml)
    with pytest.raises(DataError, match=message):
        read_table(write("toy.arff", SPARSE))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    body=st.one_of(
        st.binary(max_size=60),
        st.text(alphabet="{}01 2,'\"\\?ab\n\t%@-.", max_size=60).map(
            lambda text: (HEADER + text).encode()
        ),
        st.text(alphabet="@ATRIBUEatribue {}01,'\"\\xy\n", max_size=80).map(str.encode),
    )
)
def test_any_text_gives_a_table_or_a_data_error(write, attempt, body):
    path = write("junk.arff", body)
    for labels in (None, "y"):
        outcome = attempt(path, labels=labels)
        assert isinstance(outcome, LabelledTable) or "\n" not in outcome
