"""The report in a browser: figures, tables, light and dark, all without a network."""

from itertools import pairwise

import pytest

from mpvae.data import LabelledTable


@pytest.fixture(scope="session")
def report(sites, tmp_path_factory):
    pytest.importorskip("plotly", reason="the extra report is not installed")
    from mpvae.report import make_report

    model, X, Y = sites
    table = LabelledTable(X, Y.to_numpy(), tuple(X), tuple(Y), name="sites")
    file = tmp_path_factory.mktemp("report") / "report.html"
    make_report(model, table, name="sites", unseen=False).save(file)
    return file


def opened(page, report):
    page.route("http*://**", lambda route: pytest.fail(f"asks for {route.request.url}"))
    page.goto(report.as_uri())
    page.wait_for_selector("#label-table tbody tr")
    return page


def test_every_figure_is_drawn_when_it_comes_into_view(page, report):
    opened(page, report)
    places = page.locator("[data-figure]")
    assert places.count() >= 9
    for k in range(places.count()):
        places.nth(k).scroll_into_view_if_needed()
        places.nth(k).locator(".main-svg").first.wait_for()
    cell = "[data-figure=correlation]"
    z = page.eval_on_selector(cell, "e => e.data[0].z.flat().filter(v => v !== null)")
    assert len(z) == 132  # 12 labels, no diagonal
    assert max(map(abs, z)) <= 1


def test_the_heat_map_has_the_models_numbers(page, report, sites):
    model, _, _ = sites
    opened(page, report)
    page.locator("[data-figure=correlation]").scroll_into_view_if_needed()
    page.locator("[data-figure=correlation] .main-svg").first.wait_for()
    found = page.eval_on_selector(
        "[data-figure=correlation]", "e => [e.data[0].x, e.data[0].z]"
    )
    names = list(model.label_names_)
    step = 1 / 127  # a byte for each number, of which none is above 1
    for i, a in enumerate(found[0]):
        for j, b in enumerate(found[0]):
            if i != j:
                wanted = model.correlation_[names.index(a), names.index(b)]
                assert found[1][i][j] == pytest.approx(wanted, abs=step)


def test_the_table_of_labels_sorts_and_searches(page, report):
    opened(page, report)
    first = "#label-table tbody tr:first-child td:first-child"
    column = "#label-table tbody tr:not([hidden]) td:nth-child(2)"
    page.click("#label-table th:nth-child(2) button")
    values = [float(text) for text in page.locator(column).all_inner_texts()]
    assert values == sorted(values, reverse=True)
    page.click("#label-table th:nth-child(2) button")
    values = [float(text) for text in page.locator(column).all_inner_texts()]
    assert values == sorted(values)
    page.click("#label-table th:nth-child(1) button")
    assert page.inner_text(first) == "alder"
    page.fill('[data-search="label-table"]', "ju")
    assert page.locator("#label-table tbody tr:visible").count() == 1
    assert page.inner_text('[data-count="label-table"]') == "1 of 12"


def test_light_and_dark(page, report):
    page.emulate_media(color_scheme="dark")
    opened(page, report)
    assert page.get_attribute("html", "data-theme") == "dark"
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "light"


def test_nothing_is_cut_off_on_a_phone(phone, report):
    opened(phone, report)
    places = phone.locator("[data-figure]")
    for k in range(places.count()):
        places.nth(k).scroll_into_view_if_needed()
        places.nth(k).locator(".main-svg").first.wait_for()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


def test_figures_fit_on_a_printed_page(page, report):
    opened(page, report)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_timeout(500)
    widths = page.eval_on_selector_all(".main-svg", "all => all.map(e => e.clientWidth)")
    assert len(widths) >= 9
    assert max(widths) <= 660  # a page of A4 or letter has some 700 between its margins
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_timeout(500)
    widths = page.eval_on_selector_all(".main-svg", "all => all.map(e => e.clientWidth)")
    assert min(widths) > 900


def test_titles_of_panels_do_not_overlap_on_a_phone(phone, report):
    opened(phone, report)
    training = phone.locator("[data-figure=training]")
    training.scroll_into_view_if_needed()
    training.locator(".annotation-text").first.wait_for()
    boxes = training.locator(".annotation-text").all()
    places = sorted((box.bounding_box() for box in boxes), key=lambda box: box["y"])
    assert len(places) >= 5
    for above, below in pairwise(places):
        assert above["y"] + above["height"] <= below["y"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_barrier(page, report, serious, scheme):
    page.emulate_media(color_scheme=scheme)
    opened(page, report)
    assert serious(page) == []
