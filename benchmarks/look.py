"""How large and how quick what people look at is: a report of 983 labels, the explorer at 100.

    python benchmarks/look.py [delicious] [explorer]

The report is that of delicious ($MPVAE_DATA or ../shared/data), opened in Chromium; networks
are trained briefly, since page and answer have the same size whatever they have learnt. The
explorer's time is from a click to the last bar, in Chromium too. Results go to
benchmarks/results/look.json.
"""

import json
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
from playwright.sync_api import sync_playwright

from mpvae import MPVAEClassifier
from mpvae.data import data_folder, read_table, simulate_probit

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "look.json"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
# Milliseconds from a click to the frame in which the bars are drawn anew, by the page's clock.
CLICK = """name => new Promise((done) => {
  const list = document.getElementById("labels");
  const begun = performance.now();
  const seen = new MutationObserver(() => {
    if (!list.querySelector(`[data-label="${name}"][data-known]`)) return;
    seen.disconnect();
    requestAnimationFrame(() => done(performance.now() - begun));
  });
  seen.observe(list, { childList: true });
  list.querySelector(`[data-label="${name}"]`).click();
})"""
BRIEF = {"base": None, "n_members": 2, "max_epochs": 2, "random_state": 0}


def chromium(playwright):
    return playwright.chromium.launch(
        executable_path=shutil.which("chromium") or shutil.which("chromium-browser"), args=FLAGS
    )


def delicious() -> dict:
    from mpvae.report import make_report

    table = read_table((data_folder() or HERE.parents[1] / "shared" / "data") / "delicious.npz")
    train = table.split("train")
    model = MPVAEClassifier(**BRIEF).fit(train.features(), train.labels())
    start = time.perf_counter()
    report = make_report(model, table, name="delicious")
    made = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        report.save(file)
        browser = chromium(playwright)
        opened, heat = [], []
        for _ in range(5):
            page = browser.new_page()
            start = time.perf_counter()
            page.goto(file.as_uri())
            page.wait_for_selector("#label-table tbody tr")
            page.wait_for_selector("[data-figure] .main-svg")
            opened.append(time.perf_counter() - start)
            start = time.perf_counter()
            page.locator("[data-figure=correlation]").scroll_into_view_if_needed()
            page.locator("[data-figure=correlation] .main-svg").first.wait_for()
            heat.append(time.perf_counter() - start)
            page.close()
        browser.close()
        size = file.stat().st_size
    found = {
        "labels": len(model.label_names_),
        "megabytes": size / 2**20,
        "seconds_to_make": made,
        "seconds_to_open": float(np.median(opened)),
        "seconds_to_heat_map": float(np.median(heat)),
    }
    print(
        f"report of {found['labels']} labels: {found['megabytes']:.1f} MB, made in "
        f"{made:.0f} s, open in {found['seconds_to_open']:.1f} s, heat map "
        f"{found['seconds_to_heat_map']:.1f} s"
    )
    return found


def explorer() -> dict:
    import uvicorn

    from mpvae.serve import make_app

    data = simulate_probit(1000, n_features=20, n_labels=100, n_factors=5, seed=0)
    names = [f"label {k}" for k in range(100)]
    X = pd.DataFrame(data.X, columns=[f"x{k}" for k in range(20)])
    model = MPVAEClassifier(max_epochs=10, random_state=0).fit(
        X, pd.DataFrame(data.Y.astype(int), columns=names)
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = make_app(model, name="100 labels", examples=X[:3])
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    times, answers = [], []
    with sync_playwright() as playwright:
        browser = chromium(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"http://127.0.0.1:{port}")
        page.wait_for_selector("#labels button")
        page.select_option("#order", "name")
        for name in names[:30]:
            with page.expect_response("**/conditional") as answer:
                times.append(page.evaluate(CLICK, name) / 1000)
            answers.append(answer.value.request.timing["responseStart"] / 1000)
        browser.close()
    server.should_exit = True
    thread.join()
    found = {
        "labels": 100,
        "click_seconds": float(np.median(times)),
        "click_seconds_95": float(np.quantile(times, 0.95)),
        "answer_seconds": float(np.median(answers)),
    }
    print(
        f"explorer, 100 labels: {1e3 * found['click_seconds']:.0f} ms from click to bars "
        f"(median; 95 %: {1e3 * found['click_seconds_95']:.0f} ms), of which the service takes "
        f"{1e3 * found['answer_seconds']:.0f} ms"
    )
    return found


PARTS = {"delicious": delicious, "explorer": explorer}


def main() -> None:
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in sys.argv[1:] or PARTS:
        found[name] = PARTS[name]()
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
