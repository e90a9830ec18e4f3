"""The browser that the tests of a page share."""

import pytest

from surestep.reports.write import report
from tests.browser import open_browser
from tests.reports.folders import write_run


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture
def show(browser, tmp_path):
    """Write a run, or several, and open the page; return the file."""

    def show(*events, count=1, **more):
        folders = [write_run(tmp_path / f"run {n}", events, **more) for n in range(count)]
        browser.read_requests()
        browser.read_console()
        page = report(folders, tmp_path / "page.html")
        browser.open(page)
        browser.wait_until(lambda: browser.find_all("main"), "the page", 10)
        if charts := browser.find_all(".charts"):  # they are drawn when they are seen
            browser.scroll_to(charts[0])
        return page

    return show
