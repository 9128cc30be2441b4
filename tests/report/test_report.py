import base64
import hashlib
import html
import io
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pandas
import pytest
from matplotlib.figure import Figure

from browser import CHROMIUM, Browser
from builders import make_series
from examinations import make_examination, make_forecast
from gpssm.core.text import figure, jsonable
from gpssm.data.series import Series
from gpssm.methods.spec import Spec
from gpssm.plots.style import to_png
from gpssm.posterior.checks import Check
from gpssm.report import make_report, write_report
from gpssm.report.content import (
    WORDS,
    fit_group,
    forecast_group,
    forecast_tables,
    in_sentences,
    numbers,
    smoothed_errors,
)
from posteriors import make_posterior

HOSTILE = ("<script>alert(1)</script>", "a\"b'c & <b>")
CONTROL = "</script><img src=x onerror=alert(2)>"


def named(series, name=None):
    return Series(series.y, series.u, outputs=HOSTILE, inputs=[CONTROL], name=name, dt=0.1)


@pytest.fixture(scope="module")
def rows():
    return named(make_series(60, missing=True), HOSTILE[0]).split(40)


@pytest.fixture(scope="module")
def found(rows):
    return make_examination(make_posterior(raw=[rows[0]], draws=20), rows[1])


@pytest.fixture(scope="module")
def pictures():
    return dict.fromkeys(WORDS, to_png(Figure((4, 3)), 100))


@pytest.fixture(scope="module")
def page(found, pictures):
    return make_report(found, pictures=pictures, files={"config.toml": "seed = 0\n"})


class Outline(HTMLParser):
    """What a page consists of: tags with attributes, and headings in order."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def all(self, *names):
        return [attributes for tag, attributes in self.tags if tag in names]


@pytest.fixture(scope="module")
def outline(page):
    return Outline(page)


def test_the_page_is_one_small_file_that_forbids_itself_any_request(page, outline):
    assert len(page.encode()) < 3e6
    policy = next(one["content"] for one in outline.all("meta") if "http-equiv" in one)
    assert policy.startswith("default-src 'none'; img-src data:;")
    for element in ("style", "script"):
        text = re.search(rf"<{element}>(.*?)</{element}>", page, re.S).group(1)
        assert (
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            in policy
        )
    assert not outline.all("link", "iframe", "object", "base", "form")
    for _, attributes in outline.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))


def test_names_from_the_data_stay_text(page, outline):
    assert [one.get("type") for one in outline.all("script")] == ["application/json", None]
    assert {one["alt"] for one in outline.all("img")}
    assert not any("onerror" in one for one in outline.all("img"))
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', page, re.S).group(1))
    titles = [panel["title"] for panel in charts["forecast"]["panels"] if "low" not in panel]
    assert titles == list(HOSTILE)
    assert html.escape(HOSTILE[0]) in page


def test_structure_is_sound_for_those_who_cannot_see_it(outline):
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert outline.all("html")[0]["lang"] == "en"
    assert {one["href"][1:] for one in outline.all("a") if one["href"].startswith("#")} <= set(ids)
    sections = [one["id"] for one in outline.all("section")]
    expected = "words forecast fit diagnostics comparison dynamics configuration downloads"
    assert sections == expected.split()
    images = outline.all("img")
    assert len(images) == len(WORDS)
    assert all(len(one["alt"]) > 20 for one in images)
    charts = [one for one in outline.all("div") if one.get("class") == "chart"]
    assert len(charts) == 7  # of two outputs three times, and of the input
    assert all("aria-label" in one and one["tabindex"] == "0" for one in charts)


def test_files_inside_the_page_are_what_they_say(found, outline):
    files = {
        one["download"]: unquote(one["href"].partition(",")[2])
        for one in outline.all("a")
        if "download" in one
    }
    assert list(files) == ["forecast.csv", "metrics.json", "config.json", "config.toml"]
    table = pandas.read_csv(io.StringIO(files["forecast.csv"]), index_col="step")
    np.testing.assert_allclose(table[f"{HOSTILE[0]} 50%"], found.forecast.median[:, 0], rtol=1e-12)
    assert json.loads(files["metrics.json"]) == jsonable(found.to_dict())
    assert json.loads(files["config.json"])["Run"]["seed"] == 0
    assert files["config.toml"] == "seed = 0\n"


def test_cards_table_and_list_of_doubts_show_the_same_checks(found, pictures):
    bad = Check(
        "90 % intervals of y",
        "problem",
        "38 % inside",
        "Intervals are too narrow.",
        "held-out rows",
    )
    text = make_report(replace(found, checks=(*found.checks, bad)), pictures=pictures)
    # The headline, the card and the list of doubts.
    assert text.count("38 % inside") == 3
    # The worst check leads: its card stands before that of the comparison.
    assert text.index("Can it be trusted?") < text.index("Is it better than a linear model?")
    assert "<h3>Warnings</h3>\n<p>None.</p>" not in text
    sound = replace(found, checks=tuple(one for one in found.checks if one.level == "good"))
    assert "<h3>Warnings</h3>\n<p>None.</p>" in make_report(sound, pictures=pictures)


def test_the_starts_that_were_compared_are_a_table(found, pictures):
    row = {
        "start": "em+shooting",
        "noise": "free",
        "likelihood": "gaussian",
        "rolling": 0.1,
        "run": 0.25,
        "score": None,
    }
    text = make_report(
        replace(found, summary=replace(found.summary, starts=(row,))), pictures=pictures
    )
    assert "em+shooting" in text
    assert "Starts compared</h3>" in text
    assert "Starts compared</h3>" not in make_report(found, pictures=pictures)


def test_chains_with_models_of_their_own_are_not_said_to_agree(found):
    sampling = replace(found.summary.sampling, verdict="fair")
    of_one, apart = (
        in_sentences(replace(found.summary, sampling=replace(sampling, separate=separate)))[1]
        for separate in (False, True)
    )
    assert "agree fairly" in of_one
    assert "average" in apart
    assert "agree fairly" not in apart


def test_what_intervals_are_widened_by_is_a_table(found, pictures):
    rows = tuple(
        {"step": h, "factors": [1.0, 1.234], "coverage": [0.9, 0.75], "effective": 5.0}
        for h in (1, 7)
    )
    summary = replace(found.summary, calibration=rows, calibrated_on="44 rows kept aside")
    text = make_report(replace(found, summary=summary), pictures=pictures)
    assert "44 rows kept aside" in text
    assert text.count("<td>1.23</td><td>75 %</td><td>5</td>") == 2
    assert "<h3>Calibration of the intervals</h3>" not in make_report(found, pictures=pictures)


def test_every_judgement_says_of_what_it_is(page):
    assert page.count("held-out rows, 2 rolling forecasts of 10 steps") >= 4
    assert "training rows, one step ahead" in page


def test_what_is_handed_over_is_used(found, tmp_path):
    picture = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    path = write_report(
        found, tmp_path / "r.html", title="A title", pictures=dict.fromkeys(WORDS, picture)
    )
    text = path.read_text()
    assert text.count(base64.b64encode(picture).decode()) == len(WORDS)
    assert "<title>A title</title>" in text
    assert 'width="1" height="1"' in text


def test_a_posterior_is_examined_first(found, pictures, rows, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "gpssm.report.content.examine",
        lambda posterior, test, **options: asked.update(options) or found,
    )
    text = make_report(found.posterior, test=rows[1], baselines=("mean",), pictures=pictures)
    assert text == make_report(found, pictures=pictures)
    assert asked == {"baselines": ("mean",)}


def test_settings_are_words_and_the_page_has_a_date(found, pictures):
    spec = Spec(
        method={"name": "by hand", "orders": [2, 1]}, fixed=("kernel.*", "mean.*"), calibrate=True
    )
    text = make_report(
        replace(found, posterior=replace(found.posterior, spec=spec)), pictures=pictures
    )
    settings = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert settings["fixed"] == "kernel.*, mean.*"
    assert (settings["method: orders"], settings["calibrate"]) == ("2, 1", "yes")
    assert re.search(r'class="small date">\d+ \w+ 20\d\d<', text)


def test_inputs_and_steps_that_cannot_be_trusted_are_drawn_and_named(found):
    forecast = found.forecast
    left = np.where(np.isin(np.arange(forecast.horizon), (3, 4)), 0.5, 0.0)
    diagnostics = replace(forecast.diagnostics, left_by_step=left)
    doubtful = replace(forecast, diagnostics=diagnostics)
    history = found.posterior.dataset.experiments[-1]
    group = forecast_group({found.method: doubtful}, history, found.test, {"model"})
    inputs = [panel for panel in group["panels"] if panel.get("low")]
    assert [panel["title"] for panel in inputs] == list(history.inputs)
    np.testing.assert_allclose(
        inputs[0]["lines"][0]["values"][-forecast.horizon :], forecast.u[:, 0], rtol=1e-4
    )
    (span,) = inputs[0]["untrusted"]
    np.testing.assert_allclose(span, (forecast.start + np.array([2.5, 4.5])) * 0.1)
    assert group["keys"]["untrusted"] == "Untrusted"
    (table, *_) = forecast_tables(doubtful.to_dataframe(), None)
    column = [row[-1] for row in table.rows]
    assert (column.count("no"), column[3:5]) == (2, ["no", "no"])
    sound = replace(forecast, diagnostics=replace(diagnostics, left_by_step=np.zeros_like(left)))
    assert "trusted" not in forecast_tables(sound.to_dataframe(), None)[0].columns


def test_errors_by_step_are_smoothed_over_the_rows_between_origins():
    # Forecasts every three rows, of which every third is hard: a window of three steps has one of them, always.
    errors = np.sqrt(np.tile([0.0, 0.0, 3.0], 4))
    np.testing.assert_allclose(smoothed_errors(errors, 3)[1:-1], 1.0)
    np.testing.assert_allclose(smoothed_errors(errors, 1), errors)
    np.testing.assert_allclose(smoothed_errors(np.array([np.nan, 2.0, 2.0]), 3), 2.0)


def test_units_stand_behind_the_names_of_outputs():
    y, u = np.zeros((6, 2)), np.zeros((6, 0))
    series = Series(y, u, outputs=["level", "flow"], units={"level": "m"})
    seen = make_forecast(np.random.default_rng(0), series, 0, 6)
    assert [panel["title"] for panel in fit_group(seen, seen, series)["panels"]] == [
        "level [m]",
        "flow",
    ]


def test_rows_with_dates_are_drawn_at_their_dates():
    days = pandas.DataFrame(
        {"level": np.arange(6.0)}, index=pandas.date_range("2024-02-27", periods=6, freq="D")
    )
    series = Series.from_dataframe(days, "level")
    seen = make_forecast(np.random.default_rng(0), series, 0, 6)
    group = fit_group(seen, seen, series)
    assert (group["x"], group["first"], group["dates"][2:4]) == (
        "time",
        0,
        ["2024-02-29", "2024-03-01"],
    )
    assert [line["x0"] for line in group["panels"][0]["lines"]] == [0, 0]
    ahead = replace(seen, start=6, clock=series.clock)
    assert [row[0] for row in forecast_tables(ahead.to_dataframe(), None)[0].rows][:2] == [
        "2024-03-04",
        "2024-03-05",
    ]
    hours = Series.from_dataframe(
        days.set_axis(pandas.date_range("2024-02-27", periods=6, freq="h")), "level"
    )
    assert fit_group(seen, seen, hours)["dates"][1] == "2024-02-27 01:00"
    # Labels stand at round times, counted from a midnight, where rows meet them.
    late = Series.from_dataframe(
        days.set_axis(pandas.date_range("2024-02-27 08:00", periods=6, freq="20min")), "level"
    )
    group = fit_group(seen, seen, late)
    assert (group["midnight"], group["steps"][:3]) == (-24, [3, 9, 18])
    odd = Series.from_dataframe(
        days.set_axis(pandas.date_range("2024-02-27 08:01", periods=6, freq="20min")), "level"
    )
    assert "steps" not in fit_group(seen, seen, odd)


def test_rows_with_numbers_for_times_are_drawn_there():
    series = Series.from_dataframe(
        pandas.DataFrame({"t": 5 + 0.5 * np.arange(6), "level": 0.0}), "level", time="t"
    )
    seen = make_forecast(np.random.default_rng(0), series, 0, 6)
    group = fit_group(seen, seen, series)
    assert group["x"] == "t"
    assert "dates" not in group
    assert (group["panels"][0]["lines"][0]["x0"], group["panels"][0]["lines"][0]["dx"]) == (
        5.0,
        0.5,
    )


def test_numbers_and_json_survive_anything():
    assert numbers(np.array([1.234567, np.nan, -np.inf, 0.0])) == [1.2346, None, None, 0.0]
    assert numbers(np.array([1013.1234, 1013.9])) == [
        1013.1234,
        1013.9,
    ]  # as far as they can be told apart
    assert numbers(np.array([np.nan])) == [None]
    assert [figure(value) for value in (None, float("nan"), 1.23456, 7, "x")] == [
        "–",
        "–",
        "1.235",
        "7",
        "x",
    ]


def test_names_cannot_end_the_script_of_the_charts(page):
    text = re.search(r'id="charts">(.*?)</script>', page, re.S).group(1)
    assert not set("<>&\u2028") & set(text)
    panels = json.loads(text)["forecast"]["panels"]
    assert [panel["title"] for panel in panels] == [*HOSTILE, CONTROL]


# In a browser. Everything below looks at the page as a reader does.

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here: the page is not looked at"
)


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def path(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page)
    return path


# The contrast of every visible piece of text with what is behind it, as WCAG 2 has it; gives back those below 4.5.
CONTRAST = """
(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = parse(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] > 0.99) return found;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const poor = [];
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName) || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ink = parse(element.closest("svg") ? style.fill : style.color);
    const [high, low] = [light(ink), light(behind(element))].sort((a, b) => b - a);
    seen += 1;
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) poor.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return { seen, poor };
})()
"""


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_works_at_any_width_in_light_and_dark(browser, path, width, scheme):
    browser.open(path, width, scheme=scheme)
    assert browser.problems == []
    assert all(url.startswith(("file:", "data:")) for url in browser.requests)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    drawn = browser.evaluate(
        "[...document.querySelectorAll('.chart svg')].map(one => one.querySelectorAll('path').length)"
    )
    assert len(drawn) == 7
    assert min(drawn) >= 1
    # In a narrow window pictures scroll instead of shrinking until nobody can read them.
    images = (
        "[...document.images].map(one => one.complete && one.naturalWidth > 100"
        " && one.clientWidth >= 300 && one.parentElement.clientWidth <= innerWidth)"
    )
    assert len(browser.evaluate(images)) == len(WORDS) - 1  # the forecast is a chart
    assert all(browser.evaluate(images))
    found = browser.evaluate(CONTRAST)
    assert found["seen"] > 150
    assert found["poor"] == []


@needs_browser
def test_names_from_the_data_do_nothing_in_a_browser(browser, path):
    browser.open(path)
    assert browser.problems == []
    assert browser.evaluate("document.querySelectorAll('img[onerror], [src=x]').length") == 0
    titles = browser.evaluate(
        "[...document.querySelectorAll('#forecast .chart .title')].map(one => one.textContent)"
    )
    assert titles[: len(HOSTILE)] == list(HOSTILE)


@needs_browser
def test_experiments_can_be_picked_and_nothing_is_cut_off(browser, pictures, tmp_path):
    raw = [
        Series(
            one.y, one.u, outputs=["level", "temperature of the boiler"], inputs=["pump"], name=name
        )
        for one, name in ((make_series(30, seed=1), "winter"), (make_series(40, seed=2), "summer"))
    ]
    posterior = make_posterior(raw=raw, draws=4)
    path = write_report(
        make_examination(posterior, raw[0]), tmp_path / "two.html", pictures=pictures
    )
    for width in (1400, 800, 400):
        browser.open(path, width)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        cut = (
            "[...document.querySelectorAll('#diagnostics .scroll:not(.picture .scroll),"
            " #comparison .scroll:not(details .scroll)')]"
        )
        assert (
            browser.evaluate(f"{cut}.filter(one => one.scrollWidth > one.clientWidth + 1).length")
            == 0
        )
        links = (
            "[...document.querySelectorAll('.bar nav a')].map(one => one.getBoundingClientRect())"
        )
        assert browser.evaluate(f"{links}.every(one => one.left >= 0 && one.right <= innerWidth)")
        assert browser.evaluate(f"new Set({links}.map(one => one.top)).size") <= 2
    shown = (
        "[...document.querySelectorAll('#fit .experiment')].filter(one => one.checkVisibility())"
        ".map(one => one.querySelectorAll('svg .dots').length + one.dataset.experiment)"
    )
    assert browser.evaluate(shown) == ["2fit"]
    browser.evaluate(
        "(() => { const one = document.getElementById('experiment'); one.value = 'fit-0';"
        "one.dispatchEvent(new Event('change')); })()"
    )
    browser.evaluate(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    assert browser.evaluate(shown) == ["2fit-0"]
    wide = "document.querySelector('[data-experiment=fit-0] svg').getBoundingClientRect().width"
    assert browser.evaluate(wide) > 300
    assert browser.problems == []


@needs_browser
def test_switches_show_and_hide_methods_and_levels(browser, path):
    browser.open(path)
    kinds = [".line.method-last", ".line.method-model", ".band.method-model", ".band.narrow"]
    count = f"{kinds}.map(kind => document.querySelectorAll('#forecast ' + kind).length)"
    assert browser.evaluate(count) == [2, 2, 4, 4]
    for switch, expected in (
        ("[data-method=mean]", [2, 2, 4, 6]),
        ("[data-method=model]", [2, 0, 0, 4]),
        ('[data-level="50"]', [2, 0, 0, 0]),
    ):
        browser.evaluate(f"document.querySelector('#forecast {switch}').click()")
        assert browser.evaluate(count) == expected
    assert browser.problems == []


def ticks(browser):
    """The numbers along the time axis of the first chart of the forecast."""
    found = "[...document.querySelector('#forecast .chart').querySelectorAll('text[text-anchor=middle]')]"
    return [
        float(text)
        for text in browser.evaluate(f"{found}.map(one => one.textContent)")
        if text != "time"
    ]


@needs_browser
def test_zoom_by_button_mouse_and_keyboard(browser, path):
    browser.open(path)
    whole = ticks(browser)
    browser.evaluate("document.querySelector('#forecast [data-act=in]').click()")
    assert ticks(browser)[-1] - ticks(browser)[0] < 0.7 * (whole[-1] - whole[0])
    browser.evaluate("document.querySelector('#forecast [data-act=reset]').click()")
    assert ticks(browser) == whole
    left, top, wide, tall = place(browser)
    browser.mouse("mousePressed", left + 0.6 * wide, top + tall / 2, button="left", clickCount=1)
    browser.mouse("mouseMoved", left + 0.8 * wide, top + tall / 2, button="left")
    browser.mouse("mouseReleased", left + 0.8 * wide, top + tall / 2, button="left", clickCount=1)
    assert ticks(browser)[0] > whole[0]
    assert ticks(browser)[-1] < whole[-1]
    browser.evaluate("document.querySelector('#forecast .chart').focus()")
    browser.press("Escape")
    assert ticks(browser) == whole
    browser.press("ArrowRight")
    told = browser.evaluate("document.querySelector('#forecast [role=status]').textContent")
    assert re.match(r"time [\d.]+\. .*", told)
    assert browser.problems == []


def place(browser):
    browser.evaluate(
        "document.querySelector('#forecast .chart').scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    return browser.evaluate(
        "(() => { const box = document.querySelector('#forecast .chart').getBoundingClientRect();"
        "return [box.x, box.y, box.width, box.height]; })()"
    )


@needs_browser
def test_values_appear_under_the_pointer(browser, path, found):
    browser.open(path)
    left, top, wide, tall = place(browser)
    browser.mouse("mouseMoved", left + 0.95 * wide, top + tall / 2)
    tip = browser.evaluate("document.querySelector('#forecast .tip:not([hidden])').innerText")
    time = float(re.match(r"time ([\d.]+)", tip).group(1))
    median = float(re.search(r"This model, median: (-?[\d.e-]+)", tip).group(1))
    assert median == pytest.approx(found.forecast.median[round(time / 0.1) - 40, 0], rel=1e-3)
    browser.mouse("mouseMoved", 1, 1)
    assert browser.evaluate("document.querySelectorAll('#forecast .tip:not([hidden])').length") == 0


@needs_browser
def test_the_theme_can_be_switched(browser, path):
    browser.open(path, scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = browser.evaluate(ground)
    assert (
        browser.evaluate("document.getElementById('theme').getAttribute('aria-pressed')") == "true"
    )
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(ground) != dark
    assert browser.evaluate(CONTRAST)["poor"] == []


@needs_browser
def test_every_control_can_be_reached_and_has_a_name(browser, path):
    browser.open(path)
    nameless = """[...document.querySelectorAll("a[href], button, input, summary, [tabindex='0']")].filter(one =>
        !(one.textContent.trim() || one.getAttribute("aria-label") || (one.labels && one.labels[0].textContent.trim()))
        || one.tabIndex < 0).length"""
    assert browser.evaluate(nameless) == 0
    browser.press("Tab")
    outline = browser.evaluate(
        "getComputedStyle(document.activeElement).outlineStyle + document.activeElement.className"
    )
    assert outline == "solidskip"


@needs_browser
def test_it_prints_without_controls_and_with_everything_open(browser, path):
    browser.open(path)
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 5e4
    browser.call("Emulation.setEmulatedMedia", media="print")
    shown = "[...document.querySelectorAll('.bar, .zoom, .hint')].filter(one => one.checkVisibility()).length"
    assert browser.evaluate(shown) == 0
    assert browser.evaluate(
        "[...document.querySelectorAll('details:not(.long)')].every(one => one.open)"
    )
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.problems == []
