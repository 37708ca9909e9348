"""A small model, and a service of it."""

import numpy as np
import pandas as pd
import pytest

from mpvae import MPVAEClassifier
from mpvae.data import simulate_probit

SMALL = {"hidden": (16,), "latent_dim": 3, "n_draws": 8, "n_members": 2, "max_epochs": 4}


@pytest.fixture(scope="session")
def sites():
    data = simulate_probit(240, n_features=3, n_labels=4, n_factors=2, seed=0)
    X = pd.DataFrame(data.X, columns=["rain", "warmth", "height"])
    X["soil"] = np.where(data.X[:, 0] > 0, "sand", "clay")
    Y = pd.DataFrame(data.Y.astype(int), columns=["alder", "birch", "fern", "oak"])
    model = MPVAEClassifier(base=None, random_state=0, **SMALL).fit(X, Y)
    return model, X, Y


@pytest.fixture(scope="session")
def client(sites):
    """Asks a service in this process."""
    testclient = pytest.importorskip("fastapi.testclient", reason="no extra serve")
    from mpvae.serve import make_app

    model, X, _ = sites
    # a busy machine may be late; that is no fault here
    app = make_app(model, name="sites", examples=X[:3], max_wait=60)
    app.state.worker.warm.wait()
    with testclient.TestClient(app) as asking:
        yield asking
