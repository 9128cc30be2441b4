"""The documentation builds offline, all links work, and all code runs."""

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import shlex
import subprocess
import sys
import time
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
PAGES = sorted(page for page in DOCS.rglob("*.md") if DOCS / "research" not in page.parents)
SHOWN = [*PAGES, ROOT / "README.md"]
MAX_PAGES = 20
MAX_WORDS = 20_000
SAMPLERS = ("ffvd", "ffvd-p", "quick")
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


def test_the_documentation_stays_short():
    assert len(PAGES) <= MAX_PAGES
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES) <= MAX_WORDS


def test_no_page_names_a_commit():
    commit = re.compile(r"(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])\b[0-9a-f]{7,40}\b")
    for page in [*SHOWN, ROOT / "CHANGELOG.md"]:
        assert not commit.search(page.read_text(encoding="utf-8")), page


def test_no_table_is_on_two_pages():
    headers = [
        line
        for page in PAGES
        for line, rule in itertools.pairwise(page.read_text(encoding="utf-8").splitlines())
        if line.startswith("| ") and rule.startswith("|---") and len(set(line)) > 12
    ]
    rows = [
        line
        for page in PAGES
        for line in set(page.read_text(encoding="utf-8").splitlines())
        if line.startswith("| ") and line not in headers
    ]
    assert not {row for row in rows if rows.count(row) > 1}


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
        if name.startswith("reference/") or name == "gallery.html"
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
        browser.open(site["control.html"].path)
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
        assert any(link.endswith("control.html#model-predictive-control") for link in links)
        assert browser.problems == []
    finally:
        browser.close()


def test_the_page_of_the_command_line_has_every_command(site):
    from typer.main import get_command

    from gpssm.cli.app import app

    text = site["cli.html"].path.read_text(encoding="utf-8")
    headings = re.findall(r"<h3[^>]*>\s*<code>gpssm (.*?)</code>", text)
    assert set(get_command(app).commands) <= {heading.split()[0] for heading in headings}
    assert "--state-dim" in text


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
    known = [name for name, one in gpssm.methods.METHODS.items() if one.learns and name != "auto"]
    assert [re.sub(r"<.*?>", "", row[0]) for row in rows] == known
    assert all(cell in ("yes", "no") for row in rows for cell in row[2:])


@pytest.mark.parametrize(
    ("page", "registry"),
    [
        ("methods.md", gpssm.methods.METHODS),
        ("default.md", gpssm.kernels.KERNELS),
        ("default.md", gpssm.likelihoods.LIKELIHOODS),
    ],
)
def test_every_registered_name_is_in_a_table(page, registry):
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    names = "\n".join(line.split("|")[1] for line in lines if line.startswith("|"))
    assert not [name for name in registry if f"`{name}`" not in names]


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

    def small_fit(series, *inputs, **settings):
        name = settings.get("method", "ffvd")
        small = SMALL if name in SAMPLERS else {"num_draws": 10}
        settings = {"progress": False, **settings, **small}
        if "prior" in settings:
            del settings["num_inducing"]  # those of the prior
        elif name in SAMPLERS and "physics" not in settings:
            settings.setdefault("start", "em")  # the comparison of starts has tests of its own
        experiments = series if isinstance(series, list) else [series]
        contents = [
            (rows.y.tobytes(), rows.u.tobytes(), getattr(rows, "outputs", None))
            for rows in experiments
        ]
        key = (*contents, repr(settings))
        if key not in fits or "checkpoint" in settings:
            fits[key] = fit(series, *inputs, **settings)
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
        for registry in registries:
            stack.enter_context(patch.dict(registry))  # what a page adds is removed again
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in SHOWN if blocks(page, "python")], ids=lambda path: path.stem
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # runs this short give warnings
def test_blocks_run(page, workshop):
    if "datasets.load" in page.read_text(encoding="utf-8") and not os.environ.get("GPSSM_DATA"):
        pytest.skip("it reads real data: set GPSSM_DATA")
    namespace = {"__name__": page.stem}
    for number, text in enumerate(blocks(page, "python")):
        exec(compile(text, f"{page.name}, block {number}", "exec"), namespace)
