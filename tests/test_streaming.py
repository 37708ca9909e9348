"""Rows that are never all in memory: statistics, folds and batches against those in memory."""

import json
import threading
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from mpvae import ConfigError, DataError, MPVAEClassifier, choosing, cli, load_model, streaming
from mpvae.chunks import as_table
from mpvae.config import DataShape
from mpvae.data import parts as parts_module
from mpvae.data import simulate_probit
from mpvae.data.parts import open_parts
from mpvae.distributed import Team, share_of
from mpvae.features import fit_features
from mpvae.presets import resolve
from mpvae.statistics import Statistics
from mpvae.streaming import BUCKETS, bucket_of, folded, look_over

N, L = 600, 3
DATA = simulate_probit(N + 200, n_features=4, n_labels=L, n_factors=1, seed=1)
LIKE = torch.zeros((), dtype=torch.float32)
SMALL = {
    "hidden": 8,
    "latent_dim": 2,
    "n_factors": 2,
    "n_draws": 4,
    "max_epochs": 3,
    "random_state": 0,
}


def frame(n=N + 200):
    """A number, a far one, a whole one, a constant, text, an empty cell here and there."""
    X = pd.DataFrame(DATA.X[:n], columns=list("abcd"))
    X["far"] = 1e9 + X.pop("b")
    X["number"] = np.arange(n)
    X["same"] = 0.1
    X.loc[7::50, "a"] = np.nan
    X["ground"] = np.where(DATA.X[:n, 0] > 0, "sand", "mud")
    X.loc[3::40, "ground"] = None
    return X.join(pd.DataFrame(DATA.Y[:n], columns=["sp_0", "sp_1", "sp_2"]))


@pytest.fixture
def folder(tmp_path):
    whole = frame(N)
    whole[:250].to_parquet(tmp_path / "a.parquet", row_group_size=60)
    whole[250:].to_parquet(tmp_path / "b.parquet", row_group_size=100)
    return tmp_path


@pytest.fixture
def table(folder, monkeypatch):
    monkeypatch.setattr(parts_module, "CHUNK_VALUES", 11 * 17)  # 17 rows
    return open_parts(folder, labels="sp_*")


def number_of(features):
    """Rows told apart by the column that counts them, once standardised."""
    return np.rint(features[:, 4] * np.arange(N).std() + (N - 1) / 2).astype(int)


def parts_of(table, **given):
    seen = look_over(table, 5)
    settings = resolve("default", given, DataShape(N, 9, L))
    return seen, list(folded(table, seen, seen.features.apply, settings, 5))


# --------------------------------------------------------------------------------- one pass


def test_one_pass_tells_what_all_rows_at_once_would(table):
    X, Y = frame(N).iloc[:, :-L], frame(N).iloc[:, -L:].to_numpy()
    seen = look_over(table, 0)
    expected = fit_features(X, np.ones(N), tuple(X.columns))
    np.testing.assert_array_equal(seen.features.numeric, expected.numeric)
    np.testing.assert_array_equal(seen.features.marked, expected.marked)
    assert seen.features.levels == expected.levels
    # Sums of 600 numbers in another order; of the far column a spread of 1 around 1e9.
    np.testing.assert_allclose(seen.features.mean, expected.mean, rtol=1e-13)
    np.testing.assert_allclose(seen.features.scale, expected.scale, rtol=1e-7)
    bucket = bucket_of(np.arange(N), 0)
    np.testing.assert_array_equal(seen.n_rows, np.bincount(bucket, minlength=BUCKETS))
    for k in (0, 7, 59):
        np.testing.assert_array_equal(seen.positive[k], Y[bucket == k].sum(0))
        np.testing.assert_array_equal(seen.observed[k], [(bucket == k).sum()] * L)


def test_chunks_of_any_size_have_the_same_statistics():
    X = frame(N).iloc[:, :-L]
    found = []
    for size in (1, 37, N):
        statistics = Statistics(X.columns)
        for start in range(0, N, size):
            statistics.add(X[start : start + size])
        found.append(statistics.features())
    for other in found[1:]:
        np.testing.assert_allclose(other.scale, found[0].scale, rtol=1e-7)
        assert other.levels == found[0].levels
    with pytest.raises(DataError, match="there are no rows"):
        Statistics(["a"]).features()


def test_texts_that_are_no_categories_are_refused(tmp_path):
    f = frame(N).assign(ground=[f"site {i}" for i in range(N)])
    f.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"'ground' has .* distinct text values"):
        look_over(open_parts(tmp_path, labels="sp_*"), 0)


def test_an_infinite_number_is_refused(tmp_path):
    frame(N).assign(a=np.inf).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="X contains inf in column a"):
        look_over(open_parts(tmp_path, labels="sp_*"), 0)


def test_the_sample_is_of_all_rows_alike(table, monkeypatch):
    monkeypatch.setattr(streaming, "SAMPLE_ROWS", 40)
    times = Counter()
    labels = frame(N).iloc[:, -L:].to_numpy()
    for seed in range(60):
        seen = look_over(table, seed)
        assert len(seen.sample_Y) == 40
        number = seen.sample_X["number"].to_numpy()
        assert len(set(number)) == 40
        np.testing.assert_array_equal(seen.sample_Y, labels[number])
        np.testing.assert_array_equal(seen.sample_bucket, bucket_of(number, seed))
        times.update(number // 100)
    # 2400 draws, a sixth for each hundred rows: a standard deviation of 18, five of them.
    assert max(abs(times[k] - 400) for k in range(6)) < 91


# ------------------------------------------------------------------------------------ epochs


@pytest.mark.parametrize("buffer", [1, 200, 10**6])
@pytest.mark.parametrize("size", [1, 32, 1000])
def test_an_epoch_is_every_row_of_the_other_folds_once(table, monkeypatch, buffer, size):
    monkeypatch.setattr(streaming, "BUFFER_VALUES", buffer * 12)
    _, parts = parts_of(table, n_members=3)
    taught = []
    for k, (learn, judge) in enumerate(parts):
        torch.manual_seed(k)
        batches = list(learn.batches(size, LIKE))
        assert [len(y) for _, y, *_ in batches[:-1]] == [size] * (len(batches) - 1)
        assert len(batches) == -(-len(learn) // size)
        x, y, weight = (torch.cat(part) for part in list(zip(*batches, strict=True))[:3])
        number = number_of(x.numpy())
        np.testing.assert_array_equal(y, frame(N).iloc[number, -L:])
        assert (weight == 1).all()
        assert len(set(number)) == len(number) == len(learn)
        assert (bucket_of(number, 5) % 3 != k).all()
        taught += list(number)
        of_fold = number_of(judge.X)
        assert not set(of_fold) & set(number)
        assert len(of_fold) + len(number) == N  # the sample holds all here
        assert not set(number_of(learn.sample.X)) & set(of_fold)
        np.testing.assert_allclose(
            learn.prevalence(), (y.sum(0) + 0.5) / (len(y) + 1), rtol=1e-6
        )
        assert (learn.n_features, learn.n_labels) == (x.shape[1], L)
    assert set(Counter(taught).values()) == {2}


@pytest.mark.parametrize("n_readers", [2, 3])
def test_of_several_processes_each_reads_its_own_row_groups(table, monkeypatch, n_readers):
    """Nine groups; where there are fewer than four for each, all read all."""
    _, ((learn, _),) = parts_of(table, n_members=1, validation_fraction=0.0)
    opened = []
    read = type(table)._of_group
    monkeypatch.setattr(
        type(table),
        "_of_group",
        lambda self, group, at_once: opened.append(group) or read(self, group, at_once),
    )
    found, groups = [], []
    for rank in range(n_readers):
        monkeypatch.setattr(streaming, "team", lambda rank=rank: Team(rank, n_readers))
        opened.clear()
        generator = torch.Generator().manual_seed(7)  # the same in all
        batches = list(learn.batches(50, LIKE, generator))
        assert [len(y) for _, y, *_ in batches] == [
            len(range(50)[share_of(50, Team(rank, n_readers))])
        ] * 12
        found.append([number_of(x.numpy()) for x, *_ in batches])
        groups.append({group.first for group in opened})
    if n_readers == 2:
        assert not groups[0] & groups[1]
        assert len(groups[0] | groups[1]) == table.n_groups
        assert not set(np.concatenate(found[0])) & set(np.concatenate(found[1]))
    else:
        together = [np.concatenate(parts) for parts in zip(*found, strict=True)]
        assert sorted(np.concatenate(together)) == list(range(N))


def test_rows_are_mixed_and_the_seed_says_how(table):
    _, parts = parts_of(table, n_members=3)
    learn = parts[0][0]

    def epoch(seed):
        torch.manual_seed(seed)
        return np.concatenate([number_of(x.numpy()) for x, *_ in learn.batches(50, LIKE)])

    one, same, other = epoch(0), epoch(0), epoch(1)
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    # Ranks of a random order: a correlation of 0 with the place, sd 1 / sqrt(400).
    assert abs(np.corrcoef(one, np.arange(len(one)))[0, 1]) < 5 / np.sqrt(len(one))


def test_one_member_leaves_out_a_share(table):
    _, ((learn, judge),) = parts_of(table, n_members=1, validation_fraction=0.2)
    assert len(learn) + len(judge) == N
    assert 0.1 * N < len(judge) < 0.3 * N
    _, ((learn, judge),) = parts_of(table, n_members=1, validation_fraction=0.0)
    assert (len(learn), judge) == (N, None)


def test_an_error_while_reading_is_raised_where_rows_are_wanted(table, monkeypatch):
    _, parts = parts_of(table, n_members=2)

    def broken(*_):
        yield from ()
        raise DataError("b.parquet cannot be read")

    monkeypatch.setattr(type(table), "chunks", broken)
    with pytest.raises(DataError, match="cannot be read"):
        list(parts[0][0].batches(10, LIKE))


def test_the_reader_ends_when_nobody_reads_on(table, monkeypatch):
    monkeypatch.setattr(streaming, "BUFFER_VALUES", 12)
    _, parts = parts_of(table, n_members=2)
    batches = parts[0][0].batches(5, LIKE)
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name == "mpvae-reader"]


# --------------------------------------------------------------------------------- the model


def test_a_streamed_fit_is_as_good_as_one_in_memory(tmp_path):
    """On 600 rows of simulated labels; both are judged on 200 others."""
    frame(N).to_parquet(tmp_path / "a.parquet", row_group_size=100)
    X, Y = frame().iloc[:, :-L].drop(columns="number"), frame().iloc[:, -L:]
    given = SMALL | {"max_epochs": 40, "hidden": 32, "base": None, "n_members": 3}
    memory = MPVAEClassifier(**given).fit(X[:N], Y[:N])
    streamed = MPVAEClassifier(**given).fit_stream(tmp_path, labels="sp_*", exclude=["number"])
    assert streamed.feature_names_in_.tolist() == X.columns.tolist()
    assert streamed.label_names_.tolist() == Y.columns.tolist()
    assert streamed.settings_ == memory.settings_
    p, q = (model.predict_proba(X[N:]) for model in (memory, streamed))
    truth = Y[N:].to_numpy()
    loss = [-np.log(np.where(truth == 1, r, 1 - r)).mean(1) for r in (p, q)]
    apart = loss[1] - loss[0]
    usual = -np.log(np.where(truth == 1, truth.mean(0), 1 - truth.mean(0))).mean()
    assert loss[0].mean() < 0.95 * usual
    # The same rows in another order: apart by chance, of which rows tell the size.
    assert abs(apart.mean()) < 4 * apart.std() / np.sqrt(len(apart)) + 0.01
    assert streamed.score(X[N:], Y[N:]) == pytest.approx(memory.score(X[N:], Y[N:]), abs=0.05)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    place = tmp_path_factory.mktemp("stream")
    frame(N).to_parquet(place / "a.parquet", row_group_size=100)
    return MPVAEClassifier(n_members=2, **SMALL).fit_stream(place, labels="sp_*")


def test_it_answers_and_is_saved_as_any_other(fitted, tmp_path):
    X = frame().iloc[N:, :-L]
    fitted.save(tmp_path / "m")
    again = load_model(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    known = pd.DataFrame({"sp_1": np.ones(len(X))})
    assert fitted.predict_conditional(X, known).shape == (len(X), L)
    assert fitted.evidence_ == []
    assert fitted.thresholds_.keys() == {
        "example_f1",
        "micro_f1",
        "macro_f1",
        "hamming",
        "subset",
    }


def test_chunks_of_ones_own_give_the_same_model(fitted):
    whole = frame(N)

    def chunks():
        for start in range(0, N, 100):
            some = whole[start : start + 100]
            yield some.iloc[:, :-L], some.iloc[:, -L:]

    own = MPVAEClassifier(n_members=2, **SMALL).fit_stream(chunks)
    X = whole.iloc[:50, :-L]
    # One part instead of six: rows come in another order, and no more.
    assert own.settings_ == fitted.settings_
    np.testing.assert_allclose(own.features_.mean, fitted.features_.mean, rtol=1e-13)
    assert np.abs(own.predict_proba(X) - fitted.predict_proba(X)).mean() < 0.05


def test_arrays_get_numbers_for_names():
    def chunks():
        for start in (0, 200, 400):
            yield DATA.X[start : start + 200], DATA.Y[start : start + 200]

    model = MPVAEClassifier(n_members=2, **SMALL).fit_stream(chunks)
    assert model.label_names_.tolist() == ["label_0", "label_1", "label_2"]
    assert not hasattr(model, "feature_names_in_")  # or arrays would be warned about
    assert model.predict_proba(DATA.X[:2]).shape == (2, 3)


X9, Y9 = DATA.X[:9], DATA.Y[:9]


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        ([], "no chunk"),
        (
            [(DATA.X[:9], DATA.Y[:9]), (DATA.X[:9, :2], DATA.Y[:9])],
            "X of the chunk after row 9",
        ),
        (
            [(DATA.X[:9], DATA.Y[:9]), (DATA.X[:9], DATA.Y[:9, :2])],
            "y of the chunk after row 9",
        ),
        ([(DATA.X[:9], DATA.Y[:9]), (DATA.X[:9], DATA.Y[:8])], "9 rows of X but 8 of y"),
        ([(DATA.X[:9], DATA.Y[:9] + 1)], "y must hold 0 and 1"),
    ],
)
def test_chunks_that_do_not_fit_together(chunks, says):
    with pytest.raises(DataError, match=says):
        MPVAEClassifier(**SMALL).fit_stream(lambda: iter(chunks))


def test_what_is_no_source(tmp_path):
    with pytest.raises(DataError, match="path to Parquet files, or a function"):
        as_table([1, 2], labels=None, exclude=())
    with pytest.raises(DataError, match="leave them out"):
        as_table(lambda: iter([]), labels="sp_*", exclude=())
    frame(50).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no column is a label"):
        MPVAEClassifier(**SMALL).fit_stream(tmp_path)


def test_empty_label_cells_have_to_be_allowed(tmp_path):
    holes = frame(N)
    holes["sp_1"] = holes["sp_1"].where(np.arange(N) % 3 > 0)
    holes.to_parquet(tmp_path / "a.parquet")
    model = MPVAEClassifier(n_members=2, **SMALL)
    with pytest.raises(DataError, match="allow_missing_labels=True"):
        model.fit_stream(tmp_path, labels="sp_*")
    model.set_params(allow_missing_labels=True).fit_stream(tmp_path, labels="sp_*")
    assert np.isfinite(model.predict_proba(holes.iloc[:9, :-L])).all()


# -------------------------------------------------------------------------- the command line


def run(*words):
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_large_files_are_streamed_by_the_commands(folder, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(choosing, "IN_MEMORY_VALUES", 100)
    monkeypatch.setattr(parts_module, "CHUNK_VALUES", 11 * 100)
    words = [f"{name}={value}" for name, value in SMALL.items() if name != "random_state"]
    settings = [word for pair in (*words, "n_members=2") for word in ("-s", pair)]
    model, out = tmp_path / "m", tmp_path / f"p.{suffix}"
    told = run("fit", folder, "-l", "sp_*", "-x", "number", "-o", model, "--json", *settings)
    assert (json.loads(told)["rows"], json.loads(told)["base"]) == (N, [])
    run("predict", model, folder / "b.parquet", "--keep", "number", "--out", out)
    found = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    columns = ["a", "c", "d", "far", "same", "ground"]
    expected = load_model(model).predict_proba(frame(N)[columns][250:])
    np.testing.assert_allclose(found[["sp_0", "sp_1", "sp_2"]], expected, rtol=1e-12)
    assert found["number"].tolist() == list(range(250, N))
    assert [file.name for file in tmp_path.glob(".p*")] == []


def test_a_prediction_that_fails_leaves_no_file(folder, fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "IN_MEMORY_VALUES", 100)
    monkeypatch.setattr(parts_module, "CHUNK_VALUES", 11 * 100)
    fitted.save(tmp_path / "m")
    file = folder / "b.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:200] + bytes(2800) + whole[3000:])
    words = ["predict", tmp_path / "m", folder, "--out", tmp_path / "p.csv"]
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == 2
    assert "b.parquet cannot be read as Parquet" in result.stderr
    assert not list(tmp_path.glob("*p.csv*"))
    file.write_bytes(whole)
    words[-1] = tmp_path / "p.json"
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert "cannot be one JSON list; use .csv or .parquet" in result.stderr


@pytest.mark.parametrize(
    ("later", "says"),
    [
        (lambda X: X[:100], "fewer rows"),
        (lambda X: X[:0], "fewer rows"),
        (lambda X: np.vstack([X, X]), "more rows"),
    ],
)
def test_chunks_that_change_between_calls_are_refused(later, says):
    times = 0

    def chunks():
        nonlocal times
        times += 1
        change = later if times > 3 else lambda rows: rows  # a look, statistics, an epoch
        return [(change(DATA.X), change(DATA.Y))]

    with pytest.raises(DataError, match=f"{says}.*a new iterator over the same chunks"):
        MPVAEClassifier(n_members=1, **SMALL | {"max_epochs": 5}).fit_stream(chunks)


def test_one_generator_again_and_again_is_refused():
    rows = iter([(DATA.X[:300], DATA.Y[:300]), (DATA.X[300:], DATA.Y[300:])])
    with pytest.raises(DataError, match=r"a new iterator|no rows"):
        MPVAEClassifier(n_members=1, **SMALL).fit_stream(lambda: rows)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "source returned NoneType; return an iterator"),
        ([DATA.X], "source gave ndarray; give chunks of two tables"),
        ([(DATA.X, DATA.Y, 1)], "give chunks of two tables"),
        ([(DATA.X[:0], DATA.Y[:0])], "no chunk"),
    ],
)
def test_what_is_no_chunk_is_refused(found, says):
    with pytest.raises(DataError, match=says):
        MPVAEClassifier(**SMALL).fit_stream(lambda: found)


def test_chunks_without_rows_are_passed_over():
    X = pd.DataFrame(DATA.X, columns=list("abcd"))
    empty = (pd.DataFrame(columns=list("abcd")), pd.DataFrame(columns=["p", "q", "r"]))
    Y = pd.DataFrame(DATA.Y, columns=["p", "q", "r"])
    with_none = MPVAEClassifier(n_members=1, **SMALL)
    plain = MPVAEClassifier(n_members=1, **SMALL)
    a = with_none.fit_stream(lambda: [empty, (X, Y), empty]).predict_proba(X)
    np.testing.assert_array_equal(a, plain.fit_stream(lambda: [(X, Y)]).predict_proba(X))


def test_a_base_that_cannot_be_asked_is_refused():
    with pytest.raises(ConfigError, match="base is 'forest', but nobody is asked"):
        MPVAEClassifier(base="forest").fit_stream(lambda: [(DATA.X, DATA.Y)])


def test_other_files_than_parquet_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,1\n")
    with pytest.raises(DataError, match="is not a Parquet file"):
        MPVAEClassifier().fit_stream(tmp_path / "a.csv")


@pytest.mark.parametrize("factor", [1e-200, 1.0, 1e200])
def test_statistics_of_any_size_are_those_in_memory(factor):
    X = pd.DataFrame(DATA.X * factor, columns=list("abcd"))
    statistics = Statistics("abcd")
    for start in range(0, len(X), 150):
        statistics.add(X.iloc[start : start + 150])
    found, wanted = statistics.features(), fit_features(X, np.ones(len(X)), tuple("abcd"))
    np.testing.assert_allclose(found.apply(X), wanted.apply(X), rtol=0, atol=1e-5)
