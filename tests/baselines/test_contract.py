"""Every rival meets scikit-learn's contract and refuses bad input as our model does."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.utils.estimator_checks import _get_check_estimator_ids, estimator_checks_generator

from mpvae import MPVAEClassifier
from mpvae.baselines import C2AE, DMVP, MLARAM, MLKNN, SLEEC, LaMP
from mpvae.data import simulate_probit
from mpvae.errors import DataError

NEURAL = {"hidden": (32,), "max_epochs": 40, "lr": 0.01, "dropout": 0.0}
RIVALS = [
    MLKNN(),
    MLARAM(),
    SLEEC(),
    C2AE(**NEURAL),
    DMVP(**NEURAL),
    LaMP(**NEURAL),
]
SMALL_MPVAE = MPVAEClassifier(hidden=(16,), n_members=1, max_epochs=2, n_draws=4)


# A list, which pytest wants; scikit-learn's own decorator hands it a generator up to 1.9.0.
@pytest.mark.parametrize(
    ("estimator", "check"),
    [pair for rival in RIVALS for pair in estimator_checks_generator(rival)],
    ids=_get_check_estimator_ids,
)
def test_meets_the_sklearn_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    return simulate_probit(120, n_labels=4, seed=0)


def _names(models):
    return [type(model).__name__ for model in models]


@pytest.mark.parametrize("model", RIVALS, ids=_names(RIVALS))
def test_probabilities_have_one_column_per_label_and_stay_inside_zero_and_one(model, data):
    P = clone(model).fit(data.X, data.Y).predict_proba(data.X)
    assert P.shape == data.Y.shape
    assert (P > 0).all()
    assert (P < 1).all()


@pytest.mark.parametrize("model", RIVALS, ids=_names(RIVALS))
def test_a_sparse_matrix_and_a_frame_are_taken_and_names_come_back(model, data):
    sparse = sp.csr_array((data.X > 0.5).astype(np.float64))
    clone(model).fit(sparse, data.Y).predict(sparse)
    X = pd.DataFrame(data.X).add_prefix("x").assign(kind=np.where(data.X[:, 0] > 0, "a", "b"))
    X.iloc[3, 0] = np.nan
    y = pd.DataFrame(data.Y, columns=list("abcd"))
    fitted = clone(model).fit(X, y).set_output(transform="pandas")
    assert list(fitted.predict_proba(X).columns) == list("abcd")


BAD = {
    "counts": lambda X, Y: (X, Y * 2),
    "nan_labels": lambda X, Y: (X, np.where(np.arange(len(Y))[:, None] == 1, np.nan, Y)),
    "infinite": lambda X, Y: (np.where(X.max() > X, X, np.inf), Y),
    "lengths": lambda X, Y: (X, Y[:-1]),
    "no_labels": lambda X, Y: (X, None),
    "no_columns": lambda X, Y: (X, Y[:, :0]),
    "twins": lambda X, Y: (X, pd.DataFrame(Y, columns=["a", "a", "b", "c"])),
}


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("model", RIVALS, ids=_names(RIVALS))
def test_bad_input_gets_the_error_our_own_model_gives(model, fault, data):
    X, Y = BAD[fault](data.X, data.Y.astype(float))
    with pytest.raises(ValueError) as ours:  # noqa: PT011  compared below
        clone(SMALL_MPVAE).fit(X, Y)
    with pytest.raises(type(ours.value)) as theirs:
        clone(model).fit(X, Y)
    assert str(theirs.value).replace(type(model).__name__, "") == str(ours.value).replace(
        "MPVAEClassifier", ""
    )


@pytest.mark.parametrize("model", RIVALS, ids=_names(RIVALS))
def test_a_failed_fit_leaves_nothing_to_predict_with(model, data):
    from sklearn.exceptions import NotFittedError

    fitted = clone(model).fit(data.X, data.Y)
    with pytest.raises(DataError):
        fitted.fit(data.X, data.Y[:-1])
    with pytest.raises(NotFittedError):
        fitted.predict(data.X)


@pytest.mark.parametrize("model", RIVALS, ids=_names(RIVALS))
def test_labels_without_or_with_only_ones_are_ordinary_input(model, data):
    Y = data.Y.copy()
    Y[:, 0], Y[:, 1] = 0, 1
    P = clone(model).fit(data.X, Y).predict_proba(data.X)
    assert P[:, 0].mean() < 0.5  # C2AE ranks; its scores are no frequencies
    assert P[:, 1].mean() > 0.5
