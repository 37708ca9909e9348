"""scikit-learn's own checks, all of them, on small fast settings; no expected failures."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from mpvae import MPVAEClassifier

FAST = {
    "hidden": (32,),
    "latent_dim": 4,
    "n_draws": 8,
    "n_members": 2,
    "max_epochs": 40,
    "lr": 0.01,
}


@parametrize_with_checks([MPVAEClassifier(**FAST)])
def test_meets_the_sklearn_contract(estimator, check):
    check(estimator)
