"""Takes the pictures of docs/images: report, explorer and terminal, as people see them.

    python docs/screenshots.py [--keep FOLDER]     # also at phone width, into FOLDER

Needs Chromium (`make browser`).
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
IMAGES = HERE / "images"
EXAMPLES = HERE.parent / "examples"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
# Lines that touch, as boxes need.
TERMINAL = """<style>{stylesheet}
pre {{ display: inline-block; margin: 0; padding: 20px 26px; border-radius: 10px;
  background: #22262c; color: #e8eaed; font: 15px/1.164 "DejaVu Sans Mono", monospace; }}
</style><pre>{code}</pre>"""
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


def mpvae(*words: object, folder: Path | None = None) -> str:
    """Output of a command, in colour."""
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": "92"}
    done = subprocess.run(
        [sys.executable, "-m", "mpvae", *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=folder,
    )
    return done.stdout


def report(page: Page, file: Path, out: Path) -> None:
    page.goto(file.as_uri())
    page.wait_for_timeout(1500)
    page.screenshot(path=out / "report_top.png")
    for key, name in (("correlation", "report_heatmap"), ("label-map", "report_map")):
        section = page.locator(f"section[aria-labelledby={key}]")
        section.scroll_into_view_if_needed()
        page.wait_for_timeout(1500)
        section.screenshot(path=out / f"{name}.png")


def explorer(page: Page, address: str, out: Path) -> None:
    page.goto(address)
    page.wait_for_selector("#labels button")
    page.wait_for_timeout(1000)
    page.screenshot(path=out / "explorer_before.png")
    for label in ("species_alder", "species_fern"):
        with page.expect_response("**/conditional"):
            page.click(f'[data-label="{label}"]')
    page.mouse.move(0, 0)
    page.wait_for_timeout(1000)
    page.screenshot(path=out / "explorer_after.png")


def terminal(page: Page, out: Path, folder: Path) -> None:
    shown = Console(record=True, width=92, file=io.StringIO())
    shown.print("$ mpvae demo", style="bold")
    shown.print(Text.from_ansi(mpvae("demo", folder=folder)))
    picture = folder / "terminal.html"
    picture.write_text(shown.export_html(code_format=TERMINAL), encoding="utf-8")
    page.goto(picture.as_uri())
    page.locator("pre").screenshot(path=out / "terminal.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="also take them at phone width, into FOLDER")
    args = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        table = EXAMPLES / "sites.csv"
        words = ("fit", table, "--labels", "species_*", "--exclude", "site_id")
        mpvae(*words, "--out", folder / "sites")
        mpvae("report", folder / "sites", "--data", table, "--out", folder / "report.html")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        service = subprocess.Popen(
            [
                *(sys.executable, "-m", "mpvae", "serve", folder / "sites", "--port", "0"),
                *("--data", EXAMPLES / "new_sites.csv"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            told = service.stderr.readline()
            address = next(word.strip(",") for word in told.split() if word.startswith("http"))
            time.sleep(1)
            for size, out in ((DESKTOP, IMAGES), (PHONE, args.keep)):
                if out is None:
                    continue
                out.mkdir(exist_ok=True, parents=True)
                page = browser.new_page(viewport=size)
                report(page, folder / "report.html", out)
                explorer(page, address, out)
                if out is IMAGES:
                    terminal(page, out, folder)
                page.close()
        finally:
            service.terminate()
            service.wait()
            browser.close()


if __name__ == "__main__":
    main()
