"""The documentation: it builds, stands alone, leads nowhere in vain, and everything that it shows runs."""

import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
import time
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

import gpssm
import gpssm.report
from browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SHOWN = [*PAGES, ROOT / "README.md"]
SMALL = {"num_inducing": 8, "num_chains": 2, "num_warmup": 20, "num_draws": 10}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "link": "href",
}


def blocks(page, language):
    """The blocks of a page in one language; what is included from a file has a fence of another kind."""
    return [
        text for name, text in FENCE.findall(page.read_text(encoding="utf-8")) if name == language
    ]


class Page(HTMLParser):
    """What a page fetches, what it links to, and the anchors that it has."""

    def __init__(self, path):
        super().__init__()
        self.path, self.fetched, self.links, self.anchors = path, [], [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if given.get(FETCHED.get(tag)):
            self.fetched.append(given[FETCHED[tag]])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of the site, built with every warning an error."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install 'gpssm[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stdout + built.stderr
    return {path.relative_to(folder).as_posix(): Page(path) for path in folder.rglob("*.html")}


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.values():
        assert not [address for address in page.fetched if urlsplit(address).netloc], page.path
    folder = site["index.html"].path.parent
    for sheet in folder.rglob("*.css"):
        assert not re.findall(
            r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")
        ), sheet


def test_every_link_leads_somewhere(site):
    folder = site["index.html"].path.parent
    for page in site.values():
        # The page for addresses that do not exist is shown at any of them, and links from the root.
        if page.path.name == "404.html":
            continue
        for link in page.links + page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.path.name} links to {link}"
            if target.suffix == ".html" and parts.fragment:
                anchors = site[target.relative_to(folder.resolve()).as_posix()].anchors
                assert unquote(parts.fragment) in anchors, f"{page.path.name} links to {link}"


def test_every_public_name_is_in_the_reference(site):
    pages = [
        page.path.read_text(encoding="utf-8")
        for name, page in site.items()
        if name.startswith("reference/")
    ]
    headings = [
        heading for text in pages for heading in re.findall(r"<h2.*?</h2>", text, re.DOTALL)
    ]
    words = {
        word for heading in headings for word in re.sub(r"<[^>]+>|¶|&para;", " ", heading).split()
    }
    assert not [name for name in gpssm.__all__ if f"gpssm.{name}" not in words]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: nothing is searched")
def test_the_search_works_from_a_folder(site):
    browser = Browser()
    try:
        browser.open(site["guides/control.html"].path)
        type_words = """(() => {
            const field = document.querySelector(".md-search__input");
            field.focus();
            field.value = "chance constraint";
            field.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
        })()"""
        found = "[...document.querySelectorAll('.md-search-result__link')].map(one => one.href)"
        links: list[str] = []
        deadline = time.monotonic() + 30
        while not links and time.monotonic() < deadline:
            browser.evaluate(type_words)
            browser.evaluate("new Promise(done => setTimeout(done, 200))")
            links = browser.evaluate(found)
        assert any(link.endswith("guides/control.html#model-predictive-control") for link in links)
        assert browser.problems == []
    finally:
        browser.close()


def test_the_page_of_the_command_line_has_every_command_and_a_complete_config(site):
    from gpssm.cli.app import app

    text = site["cli.html"].path.read_text(encoding="utf-8")
    headings = re.findall(r"<h3[^>]*>\s*<code>gpssm (.*?)</code>", text)
    from typer.main import get_command

    assert set(get_command(app).commands) <= {heading.split()[0] for heading in headings}
    assert "--state-dim" in text
    shown = runpy.run_path(str(DOCS / "commands.py"))["config"]()
    tables = tomllib.loads(shown.removeprefix("```toml\n").removesuffix("```"))
    assert tables["data"]["files"] == ["tank.csv"]
    assert (
        tables["fit"]["num_chains"] == inspect.signature(gpssm.fit).parameters["num_chains"].default
    )
    assert tables["method"]["num_draws"] == gpssm.methods.METHODS["ffvd"].num_draws


def test_every_page_is_in_the_navigation(site):
    shown = site["index.html"].links
    missing = [
        page
        for page in PAGES
        if page.relative_to(DOCS).with_suffix(".html").as_posix() not in shown
    ]
    assert not missing


def test_the_table_of_assumptions_has_every_method_with_a_gaussian_process(site):
    text = site["methods.html"].path.read_text(encoding="utf-8")
    table = text[text.index("<table>") : text.index("</table>")]
    rows = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in table.split("<tr>")[2:]]
    known = {
        name: one.assumptions
        for name, one in gpssm.methods.METHODS.items()
        if one.assumptions is not None
    }
    assert [re.sub(r"<.*?>", "", row[0]) for row in rows] == list(known)
    assert [[cell == "yes" for cell in row[2:]] for row in rows] == [
        list(one[:3]) for one in known.values()
    ]


def test_every_registered_name_is_in_the_tables():
    text = (DOCS / "choosing.md").read_text(encoding="utf-8")
    registered = [*gpssm.methods.METHODS, *gpssm.kernels.KERNELS, *gpssm.likelihoods.LIKELIHOODS]
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    assert not [name for name in registered if f"`{name}`" not in rows]


@pytest.mark.parametrize("page", SHOWN, ids=lambda path: path.stem)
def test_commands_exist(page):
    from typer.main import get_command

    from gpssm.cli.app import app

    lines = [
        line
        for block in blocks(page, "sh")
        for line in block.splitlines()
        if line.startswith("gpssm ")
    ]
    for line in lines:
        command, words = get_command(app), shlex.split(line, comments=True)[1:]
        while words and not words[0].startswith("-") and getattr(command, "commands", None):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert not {word for word in words if re.match(r"-+[a-z]", word)} - known, line


@pytest.fixture(scope="module")
def fits():
    """Fits made so far, by data and settings: pages share them."""
    return {}


@pytest.fixture
def workshop(fits, monkeypatch, tmp_path):
    """A folder with the file that pages read, in which every fit is a small one."""
    module = importlib.import_module("gpssm.fitting.fit")
    fit = module.fit

    def small_fit(series, **settings):
        learns = settings.get("method", "ffvd") in ("ffvd", "ffvd-p")
        settings = {"progress": False, **settings, **(SMALL if learns else {"num_draws": 10})}
        if "prior" in settings:
            del settings["num_inducing"]  # which comes with it
        elif learns and "physics" not in settings:
            settings.setdefault("start", "em")  # the comparison of starts has tests of its own
        data = series if isinstance(series, list) else [series]
        key = (*((one.y.tobytes(), one.u.tobytes(), one.outputs) for one in data), repr(settings))
        if key not in fits or "checkpoint" in settings:
            fits[key] = fit(series, **settings)
        return fits[key]

    def no_report(posterior, path, **options):
        # A report takes half a minute and has tests of its own: here the call must be right.
        inspect.signature(gpssm.report.make_report).bind(posterior, **options)

    monkeypatch.setattr(module, "fit", small_fit)
    monkeypatch.setattr("gpssm.report.write_report", no_report)
    monkeypatch.chdir(tmp_path)
    series = gpssm.datasets.simulate("duffing", num_steps=200).series
    table = np.hstack([series.u, series.y])
    np.savetxt("tank.csv", table, delimiter=",", header="pump,level", comments="")
    registries = (gpssm.likelihoods.LIKELIHOODS, gpssm.methods.METHODS, gpssm.kernels.KERNELS)
    with contextlib.ExitStack() as stack:
        for one in registries:
            stack.enter_context(patch.dict(one))  # what a page adds goes again
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [one for one in SHOWN if blocks(one, "python")], ids=lambda path: path.stem
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # runs this short have something to warn of
def test_blocks_run(page, workshop):
    if "datasets.load" in page.read_text(encoding="utf-8") and not os.environ.get("GPSSM_DATA"):
        pytest.skip("it reads real data: set GPSSM_DATA")
    namespace = {"__name__": page.stem}
    for number, text in enumerate(blocks(page, "python")):
        exec(compile(text, f"{page.name}, block {number}", "exec"), namespace)
