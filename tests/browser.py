"""A real browser for the tests: Chromium without a window, with a record of its requests."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.needs import needs, needs_program

INSTALL = "install it with `apt-get install --no-install-recommends chromium chromium-driver`"


class Browser:
    """A window of Chromium.

    Args:
        driver: selenium's driver.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def open(self, path: Path) -> None:
        """Open a file; return when it has loaded."""
        self.open_url(path.resolve().as_uri())

    def open_url(self, url: str) -> None:
        """Open an address; return when it has loaded."""
        self._driver.get(url)

    def open_tab(self, url: str) -> str:
        """Open an address in a new tab, which later calls see; return the tab before."""
        before = str(self._driver.current_window_handle)
        self._driver.switch_to.new_window("tab")
        self.open_url(url)
        return before

    def return_to_tab(self, tab: str) -> None:
        """Close this tab; later calls see another."""
        self._driver.close()
        self._driver.switch_to.window(tab)

    def read_requests(self) -> list[str]:
        """Return the URL of every request since the last call, blocked ones too."""
        found = []
        for entry in self._driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
            elif message["method"] == "Network.webSocketCreated":
                found.append(message["params"]["url"])
        return found

    def read_console(self) -> list[str]:
        """Return the errors and warnings of the console since the last call."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def find_all(self, selector: str, within: Any = None) -> list[Any]:
        """Return the elements that a CSS selector matches."""
        return list((within or self._driver).find_elements("css selector", selector))

    def hover(self, element: Any, right: float = 0, down: float = 0) -> None:
        """Move the mouse over an element, to an offset from its center in pixels."""
        from selenium.webdriver import ActionChains

        self.scroll_to(element)
        ActionChains(self._driver).move_to_element_with_offset(element, right, down).perform()

    def click(self, element: Any) -> None:
        """Click an element."""
        from selenium.webdriver import ActionChains

        self.scroll_to(element)
        ActionChains(self._driver).move_to_element(element).click().perform()

    def drag(self, element: Any, start: float, end: float, between: Callable[[], Any]) -> None:
        """Drag with the mouse within an element, horizontally.

        Args:
            element: in which the mouse is.
            start: offset from its center in pixels, where the button goes down.
            end: offset where it goes up.
            between: called while it is down.
        """
        from selenium.webdriver import ActionChains

        self.hover(element, start)
        ActionChains(self._driver).click_and_hold().move_by_offset(end - start, 0).perform()
        between()
        ActionChains(self._driver).release().perform()

    def scroll_to(self, element: Any) -> None:
        """Scroll an element into the middle of the window."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)

    def wait_until(self, holds: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
        """Wait until a function returns something true; return that.

        The page may draw anew between two calls of the function. An element that is gone counts as
        not yet true.
        """
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        gone = [StaleElementReferenceException]
        return WebDriverWait(self._driver, timeout_s, 0.05, gone).until(lambda _: holds(), what)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page and return its value."""
        return self._driver.execute_script(script, *arguments)

    def press(self, key: str) -> None:
        """Press a key by its name in JavaScript, such as "ArrowLeft"."""
        for kind in ("keyDown", "keyUp"):
            self._driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": kind, "key": key})

    def set_dark(self, *, is_dark: bool) -> None:
        """Have the page see a user who prefers dark, or light, colors."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        self._driver.set_window_size(width, height)

    def emulate(self, width: int, height: int) -> None:
        """Have the page see a window of this size, of any width and height."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    @contextmanager
    def use_screen(self, width: int, height: int, media: str = "screen") -> Iterator[None]:
        """Have the page see a screen of this size, or paper (`media="print"`), within a block."""
        self.emulate(width, height)
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
        try:
            yield
        finally:
            self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
            self._driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def screenshot(self, path: Path) -> None:
        """Write the window as it is shown."""
        assert self._driver.save_screenshot(str(path))


@contextmanager
def open_browser(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """Start Chromium; it ends with the block."""
    needs("selenium")
    chromium, driver_path = (needs_program(name, INSTALL) for name in ("chromium", "chromedriver"))
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # Containers run the tests as root, for whom Chromium has no sandbox, and have a small /dev/shm.
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(word)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    # With the path of the driver, selenium does not search for one in the network.
    driver = webdriver.Chrome(options, webdriver.ChromeService(driver_path))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
