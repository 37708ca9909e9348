"""A real browser (Chromium) for the pages people look at; without one these tests skip."""

import contextlib
import shutil
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mpvae import MPVAEClassifier
from mpvae.data import simulate_probit

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = ROOT / ".venv" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def chromium():
    """Chromium, driven by Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium on this machine: `make browser` installs it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A page of desktop width; anything on its console fails the test."""
    yield from _page(chromium, 1280, 900)


@pytest.fixture
def phone(chromium):
    """A page as wide as a phone."""
    yield from _page(chromium, 390, 844)


def _page(chromium, width, height):
    context = chromium.new_context(
        viewport={"width": width, "height": height}, accept_downloads=True
    )
    page = context.new_page()
    told = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.expected = []  # what a test makes the browser say
    yield page
    context.close()
    assert [text for text in told if not any(part in text for part in page.expected)] == []


@pytest.fixture(scope="session")
def sites():
    """A model of sites and species, with what it was trained on."""
    data = simulate_probit(300, n_features=3, n_labels=12, n_factors=2, seed=3)
    X = pd.DataFrame(data.X.round(3), columns=["rain", "warmth", "height"])
    X["soil"] = np.where(data.X[:, 0] > 0, "sand", "clay")
    trees = "alder birch cedar dogwood elm fir gorse hazel ivy juniper larch maple"
    Y = pd.DataFrame(data.Y.astype(int), columns=trees.split())
    model = MPVAEClassifier(
        base=None, random_state=0, hidden=(32,), latent_dim=4, n_draws=16, max_epochs=30
    )
    return model.fit(X, Y), X, Y


@pytest.fixture(scope="session")
def running():
    """Function that serves an app in a thread, and gives its address."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from mpvae.serve import bind, make_server

    @contextlib.contextmanager
    def serving(app):
        server, listening = make_server(app), bind("127.0.0.1", 0)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()

    return serving


@pytest.fixture(scope="session")
def service(sites, running):
    """Address of a running service of that model."""
    from mpvae.serve import make_app

    model, X, _ = sites
    with running(make_app(model, name="sites", examples=X[:5], max_wait=60)) as address:
        yield address


@pytest.fixture(scope="session")
def serious():
    """Function that runs axe-core on a page and returns its serious violations."""
    if not AXE.is_file():
        pytest.skip("no axe-core: `make browser` installs it from npm")
    source = AXE.read_text()

    def check(page):
        page.evaluate(source)
        found = page.evaluate("axe.run()")["violations"]
        return [
            (v["id"], v["nodes"][0]["html"][:200])
            for v in found
            if v["impact"] in ("serious", "critical")
        ]

    return check
