"""The label explorer in a browser: what it shows is what the classifier says."""

import csv
import io

import numpy as np
import pandas as pd
import pytest

READY = "#labels button"


def shown(page):
    """Probability of each label as the page has it."""
    pairs = page.eval_on_selector_all(
        "#labels button",
        "all => all.map(b => [b.dataset.label, Number(b.dataset.probability)])",
    )
    return dict(pairs)


def click(page, label):
    button = f'[data-label="{label}"]'
    before = page.get_attribute(button, "data-known")
    page.click(button)
    page.wait_for_function(  # drawn anew, with what the answer says
        "([name, was]) => document.querySelector(name).getAttribute('data-known') !== was",
        arg=[button, before],
    )


def opened(page, service):
    page.goto(service)
    page.wait_for_selector(READY)
    return page


def test_bars_are_the_probabilities_of_the_first_row(page, service, sites):
    model, X, _ = sites
    opened(page, service)
    wanted = dict(zip(model.label_names_, model.predict_proba(X[:1])[0], strict=True))
    found = shown(page)
    assert list(found) == sorted(wanted, key=wanted.get, reverse=True)
    for label, p in wanted.items():
        assert found[label] == pytest.approx(p, abs=1e-6)
    assert page.locator("#map .point").count() == 12


def test_a_click_moves_the_others_to_what_the_api_returns(page, service, sites):
    model, X, _ = sites
    opened(page, service)
    for known in ({"alder": 1}, {"alder": 1, "elm": 1}, {"alder": 1, "elm": 0}):
        label = list(known)[-1]
        click(page, label)
        given = pd.DataFrame([known])
        wanted = model.predict_conditional(X[:1], given)[0]
        found = shown(page)
        for name, p in zip(model.label_names_, wanted, strict=True):
            assert found[name] == pytest.approx(p, abs=1e-6)
    assert "2 known" in page.inner_text("#status")
    click(page, "elm")  # forgotten again
    assert page.locator("[data-known]").count() == 1
    page.click("#clear")
    page.wait_for_function("() => !document.querySelector('[data-known]')")
    assert shown(page)["elm"] == pytest.approx(model.predict_proba(X[:1])[0][4], abs=1e-6)


def test_the_list_stays_while_labels_are_clicked(page, service):
    opened(page, service)
    order = list(shown(page))
    place = page.locator("#labels button").nth(5).bounding_box()
    at = (place["x"] + 20, place["y"] + 8)
    for known in ("1", "0"):
        with page.expect_response("**/conditional"):
            page.mouse.click(*at)
        page.wait_for_selector(f'[data-label="{order[5]}"][data-known="{known}"]')
        assert page.locator("[data-known]").count() == 1
        assert list(shown(page)) == order
    page.click("#sort")
    assert next(iter(shown(page))) == order[5]  # what is known comes first


def test_quick_clicks_all_count(page, service):
    opened(page, service)
    page.eval_on_selector('[data-label="ivy"]', "button => { button.click(); button.click(); }")
    page.wait_for_selector('[data-label="ivy"][data-known="0"]')


def test_a_link_works_in_an_open_page_and_the_skip_link_keeps_it(page, service):
    opened(page, service)
    page.evaluate("location.hash = 'known=' + encodeURIComponent('{\"elm\": 1}')")
    page.wait_for_selector('[data-label="elm"][data-known="1"]')
    page.focus("#skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "labels"
    assert "elm" in page.url


def test_an_error_stays_until_its_field_is_mended(page, service):
    opened(page, service)
    page.fill("#features input", "0x10")
    click(page, "ivy")
    assert "give a number" in page.inner_text("#problem")
    page.fill("#features input", "1e999")
    assert "give a number" in page.inner_text("#problem")
    with page.expect_response("**/conditional"):
        page.fill("#features input", "1")
    page.wait_for_selector("#problem", state="hidden")


def test_strange_values_in_an_address_are_left_out(page, service):
    page.goto(service + '/#row={"rain":1e999,"warmth":{},"soil":3}&known={"nobody":1,"elm":2}')
    page.wait_for_selector(READY)
    assert page.locator("[data-known]").count() == 0
    assert "object" not in page.input_value("#features input >> nth=1")
    assert page.input_value("#features input >> nth=0") not in ("Infinity", "")


def test_the_address_holds_the_state(page, service, chromium):
    opened(page, service)
    click(page, "hazel")
    page.fill("#features input", "1.25")
    page.wait_for_function("() => location.hash.includes('1.25')")
    page.wait_for_timeout(300)
    before = shown(page)
    other = chromium.new_page()
    other.goto(page.url)
    other.wait_for_selector(READY)
    assert shown(other) == before
    assert other.get_attribute('[data-label="hazel"]', "data-known") == "1"
    other.close()


def test_rows_can_be_chosen_typed_and_uploaded(page, service, sites, tmp_path):
    model, X, _ = sites
    opened(page, service)
    with page.expect_response("**/conditional"):
        page.select_option("#example", "3")
    page.wait_for_timeout(50)
    assert shown(page)["fir"] == pytest.approx(model.predict_proba(X[3:4])[0][5], abs=1e-6)
    with page.expect_response("**/conditional"):
        page.select_option("#features select", "clay")
    page.wait_for_timeout(50)
    typed = model.predict_proba(X[3:4].assign(soil="clay"))[0][5]
    assert shown(page)["fir"] == pytest.approx(typed, abs=1e-6)
    file = tmp_path / "mine.csv"
    X[10:13].to_csv(file, index=False)
    with page.expect_response("**/conditional"):
        page.set_input_files("#upload", file)
    page.wait_for_timeout(50)
    assert page.locator("#example option").count() == 3
    assert shown(page)["fir"] == pytest.approx(model.predict_proba(X[10:11])[0][5], abs=1e-6)


def test_a_bad_file_and_a_bad_number_are_told(page, service, sites, tmp_path):
    _, X, _ = sites
    page.expected = ["422"]  # the browser notes that the file was refused
    opened(page, service)
    file = tmp_path / "bad.csv"
    X[:2].drop(columns="rain").to_csv(file, index=False)
    page.set_input_files("#upload", file)
    page.wait_for_selector("#problem:visible")
    assert "rain" in page.inner_text("#problem")
    page.fill("#features input", "wet")
    assert "“wet”; give a number" in page.inner_text("#problem")
    page.fill("#features input", "0.5")
    page.wait_for_selector("#problem", state="hidden")


def test_labels_can_be_found_and_ordered(page, service):
    opened(page, service)
    page.fill("#search", "ju")
    assert list(shown(page)) == ["juniper"]
    page.fill("#search", "")
    page.select_option("#order", "name")
    assert list(shown(page)) == sorted(shown(page))


def test_the_answer_can_be_downloaded(page, service, sites):
    model, X, _ = sites
    opened(page, service)
    click(page, "maple")
    with page.expect_download() as download:
        page.click("#download")
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    wanted = model.predict_conditional(X[:1], pd.DataFrame({"maple": [1]}))[0]
    np.testing.assert_allclose([float(row["given_known"]) for row in rows], wanted, atol=1e-6)
    assert [row["known"] for row in rows] == [""] * 11 + ["1"]


def test_everything_works_by_keyboard(page, service):
    opened(page, service)
    page.focus('[data-label="ivy"]')
    with page.expect_response("**/conditional"):
        page.keyboard.press("Enter")
    page.wait_for_selector('[data-label="ivy"][data-known="1"]')
    assert page.evaluate("document.activeElement.dataset.label") == "ivy"
    assert "known to be present" in page.text_content('[data-label="ivy"]')
    with page.expect_response("**/conditional"):
        page.keyboard.press("Space")
    page.wait_for_selector('[data-label="ivy"][data-known="0"]')


def outside(page, place):
    """Names on a map that reach beyond it."""
    return page.evaluate(
        """place => {
          const box = document.querySelector(place).getBoundingClientRect();
          return [...document.querySelectorAll(place + " .textpoint text")]
            .filter((text) => {
              const own = text.getBoundingClientRect();
              return own.width && (own.left < box.left || own.right > box.right
                || own.top < box.top || own.bottom > box.bottom);
            })
            .map((text) => text.textContent);
        }""",
        place,
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_names_on_the_map_are_whole(page, service, width):
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, service)
    page.wait_for_selector("#map .textpoint")
    assert page.locator("#map .textpoint").count() == 12
    assert outside(page, "#map") == []


def test_what_is_not_needed_is_not_shown(page, service):
    opened(page, service)
    assert page.locator("#features label").count() == 4
    assert not page.is_visible("#feature-search")  # few features need no search
    assert not page.is_visible("#problem")


def test_nothing_is_cut_off_on_a_phone(phone, service):
    opened(phone, service)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_barrier(page, service, serious, scheme):
    page.emulate_media(color_scheme=scheme)
    opened(page, service)
    click(page, "cedar")
    assert serious(page) == []


def test_the_page_of_questions_loads(page, service):
    page.goto(f"{service}/docs")
    page.wait_for_selector(".opblock")
    assert page.locator(".opblock").count() >= 7


def test_the_page_asks_for_the_token_and_keeps_it_for_the_session(
    page, sites, serious, running
):
    from mpvae.serve import make_app

    page.expected = ["401"]  # the browser notes what was refused
    model, X, _ = sites
    app = make_app(model, examples=X[:2], token="correct-horse-battery", max_wait=60)
    with running(app) as address:
        page.goto(address)
        page.wait_for_selector("#token-form:visible")
        assert page.evaluate("document.activeElement.id") == "token"
        assert serious(page) == []
        page.keyboard.type("not-the-right-token")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('#token-told').textContent")
        assert "not the token" in page.inner_text("#token-told")
        page.fill("#token", "correct-horse-battery")
        page.click("#token-form button")
        page.wait_for_selector(READY)
        assert not page.is_visible("#token-form")
        assert "correct" not in page.url
        page.reload()  # the session knows it
        page.wait_for_selector(READY)
        click(page, "alder")
        assert shown(page)["alder"] == 1


def test_questions_can_be_tried_with_the_token(page, sites, running):
    from mpvae.serve import make_app

    app = make_app(sites[0], token="correct-horse-battery", max_wait=60)
    with running(app) as address:
        page.goto(f"{address}/docs")
        page.click("button.authorize")
        page.fill(".auth-container input", "correct-horse-battery")
        page.click(".auth-btn-wrapper .authorize")
        page.click(".auth-btn-wrapper .btn-done")
        page.click("#operations-default-about_about_get .opblock-summary")
        page.click("#operations-default-about_about_get .try-out__btn")
        with page.expect_response("**/about") as answer:
            page.click("#operations-default-about_about_get .execute")
        assert answer.value.status == 200
