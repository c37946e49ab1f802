"""The report's page in a headless Chromium (CHROMIUM=path, else the one on the PATH)."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from hmerbench.benchmarks.report.page.make import report
from hmerbench.evaluation.scoring.stats import mcnemar
from tests.helpers.report_place import EXPRESSIONS, FILLERS, HOSTILE, N, Place, errors_of


@contextmanager
def opened(engine, path: Path, width: int = 1280, height: int = 860, **options: bool) -> Iterator:
    """A page, opened from its file; in the end, no error was logged and nothing else was fetched."""
    page = engine.new_page(viewport={"width": width, "height": height}, **options)
    page.errors, page.fetched = [], []
    page.on("console", lambda message: page.errors.append(message.text))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("dialog", lambda dialog: page.errors.append(dialog.message))
    page.on("request", lambda request: page.fetched.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    yield page
    assert page.errors == []
    assert [url for url in page.fetched if not url.startswith("data:")] == [path.as_uri()]
    page.close()


@pytest.fixture
def page(engine, place: Place) -> Iterator:
    with opened(engine, place.page) as page:
        yield page


def go_to(page, place: Place, id_: str) -> None:
    page.evaluate("hash => { location.hash = hash }", f"#/{place.set}/{id_}")
    expect(page.locator("#detail h3")).to_have_text(id_)


def choose(page, a: str, b: str = "") -> None:
    page.select_option("#run-a", a)
    if b or page.locator("#run-b").is_visible():
        page.select_option("#run-b", b)


def count(page) -> int:
    return int(page.inner_text("#count").split(" of ")[0])


def current(page) -> str:
    return page.inner_text("#detail h3")


def test_a_known_expression_shows_its_known_verdict(page, place: Place) -> None:
    choose(page, place.key_a, place.key_b)
    verdicts = errors_of(place.a)
    for id_, n in verdicts.items():
        if id_ not in EXPRESSIONS:
            continue
        go_to(page, place, id_)
        badge = page.inner_text("[data-side=a] .badge")
        assert ("right" in badge) if n == 0 else re.search(rf"\b{n} error", badge), (id_, badge)
    go_to(page, place, "moved")
    assert page.inner_text("[data-side=a] .badge") == "✗ wrong: 6 errors (4 symbols, 2 relations)"
    assert page.inner_text("[data-side=a] .words") == "symbol 2: 2, Sup of x read as Right"
    assert page.inner_text("[data-side=b] .badge") == "✓ right"
    assert page.locator("[data-side=truth] math msup .mark-r").text_content() == "2"
    assert page.locator("[data-side=a] math .mark-r").count() == 1 and page.locator("[data-side=a] msup").count() == 0
    go_to(page, place, "unclosed")
    assert "the expression ends too early" in page.inner_text("[data-side=a] .reason")


FILTERS: list[tuple[dict[str, str], set[str]]] = [
    ({"verdict": "right"}, {"fraction", "nested", "hostile", "long"}),
    ({"verdict": "unconverted"}, {"unclosed"}),
    ({"verdict": "missing"}, {"nothing"}),
    ({"errors": "1-1"}, {"label"}),
    ({"length": "(10,20]"}, {"limits", "long"}),
    ({"structure": "fraction"}, {"fraction"}),
    ({"structure": "root"}, {"root"}),
    ({"structure": "limits"}, {"limits"}),
    ({"structure": "nested script"}, {"nested"}),
    ({"versus": "only-a"}, {"fraction", "nested", "hostile"}),
    ({"versus": "only-b"}, {"moved", "root", "limits", "unclosed", "nothing"}),
    ({"versus": "neither"}, {"label"}),
    ({"versus": "changed", "structure": "root"}, {"root"}),
    ({"search": "b read as c"}, {"label"}),
    ({"search": "B read as c"}, set()),
    ({"search": "b read as"}, {"label", "fraction"}),
    ({"search": "2, Sup of x read as Right"}, {"moved"}),
    ({"search": r"\sqrt [3]"}, {"root"}),
    ({"search": "hostile"}, {"hostile"}),
    ({"search": "frac b"}, {"fraction"}),
    ({"search": "b frac"}, set()),
    ({"search": "no such thing"}, set()),
]


def test_filters(page, place: Place) -> None:
    choose(page, place.key_a, place.key_b)
    for filters, expected in FILTERS:
        assert count(page) == N
        for name, value in filters.items():
            page.fill("#search", value) if name == "search" else page.select_option(f"#{name}", value)
        fillers = FILLERS if filters == {"verdict": "right"} else 0
        assert count(page) == len(expected) + fillers, filters
        shown = page.eval_on_selector_all("#rows .who b", "all => all.map(one => one.textContent)")
        assert {id_ for id_ in shown if not id_.startswith("filler")} == expected, filters
        assert expected or page.inner_text("#rows") == "No expression passes these filters."
        assert expected or page.inner_text("#detail").startswith("No expression passes these filters: reset")
        page.click("#reset")


def test_the_comparison_of_two_runs_matches_the_scorer(page, place: Place) -> None:
    choose(page, place.key_a, place.key_b)
    a, b = errors_of(place.a), errors_of(place.b)
    only_a = sum(a[id_] == 0 < b[id_] for id_ in a)
    only_b = sum(b[id_] == 0 < a[id_] for id_ in a)
    assert f"only A right {only_a}, only B right {only_b}" in page.inner_text("#count")
    for pair in ((only_a, only_b), (0, 0), (1, 30), (40, 44)):
        assert page.evaluate("pair => mcnemar(...pair)", list(pair)) == pytest.approx(mcnemar(*pair), abs=1e-9)


def test_keys(page, place: Place) -> None:
    choose(page, place.key_a)
    page.focus("#list")
    ids = list(place.archive.captions("test"))
    assert current(page) == ids[0]
    for key, expected in (("j", ids[1]), ("ArrowDown", ids[2]), ("k", ids[1]), ("End", ids[-1]), ("Home", ids[0])):
        page.keyboard.press(key)
        assert current(page) == expected
        active = page.get_attribute("#list", "aria-activedescendant")
        assert page.get_attribute(f"#{active}", "aria-selected") == "true"
        assert page.locator(f"#{active} .who b").inner_text() == expected
    page.keyboard.press("/")
    page.keyboard.type("jkx?")
    assert page.input_value("#search") == "jkx?" and count(page) == 0
    page.keyboard.press("Escape")
    page.keyboard.press("x")
    assert count(page) == N and page.evaluate("document.activeElement.id") == "list"
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_arrows_scroll_the_table_that_has_the_focus(page) -> None:
    page.focus("#results .wide")
    at = page.evaluate("scrollY")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("scrollY") == at
    page.keyboard.press("j")  # as any other key
    assert page.evaluate("scrollY") > at


def test_only_visible_entries_are_in_the_document(page) -> None:
    assert page.locator("#rows > *").count() < 30 < N
    page.focus("#list")
    page.keyboard.press("End")
    assert page.locator("#rows > *").count() < 30
    assert page.locator("[aria-selected=true]").get_attribute("aria-posinset") == str(N)


def test_attention_is_played_token_by_token(page, place: Place) -> None:
    choose(page, place.key_a)
    page.check("#played")
    assert 3 <= count(page) <= 6
    page.focus("#list")

    def picture() -> str:
        return page.evaluate("document.getElementById('heat').toDataURL()")

    page.keyboard.press("ArrowRight")
    tokens = page.locator("[data-side=a] .tokens span").all_inner_texts()
    assert page.locator("[data-side=a] .tokens .now").inner_text() == tokens[0]
    assert page.locator("[data-side=a] output").inner_text() == f"1 of {len(tokens) + 1}: {tokens[0]}"
    first = picture()
    page.keyboard.press("ArrowRight")
    second = picture()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    assert len({first, second, picture()}) == 3
    output, button = page.locator("[data-side=a] output"), page.locator(".play")
    page.keyboard.press("p")
    expect(output).to_have_text(re.compile("^[2-9] of"))  # a busy machine may miss steps
    expect(output).to_have_text(re.compile(f"^{len(tokens) + 1} of"))
    expect(button).to_have_text("▶ play")  # it stops at the end
    page.keyboard.press("p")
    expect(button).to_have_text("❚❚ stop")
    page.keyboard.press("p")
    expect(button).to_have_text("▶ play")


def test_light_and_dark(page) -> None:
    for scheme, color in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 24, 28)")):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == color


def test_hostile_predictions_are_text(page, place: Place) -> None:
    choose(page, place.key_b)
    go_to(page, place, "hostile")
    assert page.inner_text("[data-side=a] .tokens").split() == HOSTILE.split()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#detail img:not(.ink, .before), #detail script").count() == 0
    page.locator("#cost summary").first.click()
    assert "a <b>machine</b>" in page.inner_text("#cost")


def test_an_address_names_an_expression(page, place: Place) -> None:
    choose(page, place.key_a)
    page.select_option("#structure", "root")
    assert current(page) == "root"
    go_to(page, place, "label")  # resets the filter that hides it
    assert page.input_value("#structure") == ""
    page.focus("#list")
    page.keyboard.press("j")
    assert page.evaluate("location.hash").split("?")[0] == f"#/{place.set}/fraction"


def test_an_address_contains_the_filters(page, place: Place) -> None:
    choose(page, place.key_a, place.key_b)
    page.select_option("#versus", "only-b")
    page.select_option("#sort", "long")
    page.fill("#search", "x")
    address, found, at = page.evaluate("location.hash"), count(page), current(page)
    assert 0 < found < N
    page.click("#reset")
    assert count(page) == N and "versus" not in page.evaluate("location.hash")
    page.goto("about:blank")
    page.fetched.clear()
    page.goto(place.page.as_uri() + address)  # as a recipient of the link
    page.wait_for_selector("body[data-ready]")
    assert (count(page), current(page), page.input_value("#run-b")) == (found, at, place.key_b)
    page.fetched[:] = [place.page.as_uri()]
    page.evaluate("location.hash = '#/100%/fraction'")  # malformed
    page.evaluate("location.hash = '#/?run-a=gone&verdict=wrong'")
    expect(page.locator("#detail h3")).to_have_text("label")


def test_tables_and_playback_fit_on_a_phone(engine, place: Place) -> None:
    with opened(engine, place.page, 375, 740, is_mobile=True) as phone:
        assert phone.evaluate("document.documentElement.scrollWidth") == 375
        boxes = [table.bounding_box() for table in phone.locator("#results table").all()]
        assert boxes and all(box and box["width"] <= 375 for box in boxes)
        assert not any(table.is_visible() for table in phone.locator("#tables table, #cost table").all())  # folded
        phone.locator("#tables summary").first.click()
        table = phone.locator("#tables table").first
        heading = table.locator("th", has_text="ExpRate").bounding_box()
        assert heading and heading["x"] + heading["width"] <= 375
        choose(phone, place.key_a)
        phone.click("#more")
        phone.check("#played")
        phone.locator(".player input").fill("1")
        for part in ("button", "input", "output"):
            box = phone.locator(f".player {part}").bounding_box()
            assert box and box["x"] >= 0 and box["x"] + box["width"] <= 375, part


def test_on_a_phone_the_list_and_a_tapped_expression_are_in_view(engine, place: Place) -> None:
    with opened(engine, place.page, 400, 800, is_mobile=True, has_touch=True) as phone:
        phone.evaluate("document.getElementById('expressions').scrollIntoView()")
        filters, rows = phone.locator("#filters").bounding_box(), phone.locator("#list").bounding_box()
        assert filters["height"] < 150 and rows["y"] + rows["height"] < 800  # the filters leave room for the list
        assert phone.is_visible("#search") and not phone.is_visible("#verdict")
        phone.locator("#rows .entry").nth(2).tap()
        detail = phone.locator("#detail h3").bounding_box()
        assert current(phone) == list(EXPRESSIONS)[2] and -1 < detail["y"] < 100
        phone.locator(".back").tap()
        assert -1 < phone.locator("#list").bounding_box()["y"] < 100
        phone.locator("#more").tap()
        phone.select_option("#verdict", "wrong")
        assert phone.inner_text("#more") == "filters (1)" and phone.get_attribute("#more", "aria-expanded") == "true"


def test_an_empty_list_says_that_a_run_has_no_attention(page, place: Place) -> None:
    choose(page, place.key_b)
    page.check("#played")
    assert count(page) == 0
    for pane in ("#rows", "#detail"):
        said = page.inner_text(pane)
        assert said.startswith("Run A has no attention on this page") and "bttr · tiny · seed 7" in said
    choose(page, place.key_a)
    assert count(page) > 0


def test_the_page_without_runs_loads(engine, tmp_path: Path) -> None:
    with opened(engine, report(None, tmp_path)) as page:
        assert "nothing to browse yet" in page.inner_text("#detail")
        assert "There are no runs yet" in page.inner_text("#notes")


def test_committed_runs_are_shown_without_crohme(engine, place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "reproduced/bttr/tiny-seed7"
    shutil.copytree(place.a, folder)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("name: foreign", "name: crohme"))
    with opened(engine, report(None, tmp_path)) as page:
        detail, notes = page.inner_text("#detail"), page.inner_text("#notes")
    id_, errors = next(iter(errors_of(place.a).items()))
    assert detail.startswith(id_) and errors == 0 and "✓ right" in detail
    assert "make report CROHME=data.zip" in detail and "null" not in detail
    assert "CROHME's images and ground truth are not included" in notes
