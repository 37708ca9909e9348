"""scikit-learn's own checks, all of them, on small fast settings; no expected failures."""

import pytest
from sklearn.utils.estimator_checks import _get_check_estimator_ids, estimator_checks_generator

from mpvae import MPVAEClassifier

FAST = {
    "hidden": (32,),
    "latent_dim": 4,
    "n_draws": 8,
    "n_members": 2,
    "max_epochs": 40,
    "lr": 0.01,
}


# A list, which pytest wants; scikit-learn's own decorator hands it a generator up to 1.9.0.
@pytest.mark.parametrize(
    ("estimator", "check"),
    list(estimator_checks_generator(MPVAEClassifier(**FAST))),
    ids=_get_check_estimator_ids,
)
def test_meets_the_sklearn_contract(estimator, check):
    check(estimator)
