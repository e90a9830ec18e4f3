"""Make the pictures of docs/report.md: python -m tests.reports.pictures.

It trains the recipe digits with three learning rates and three seeds, and the recipe spiral. It
draws the pages in Chromium, and writes parts of them as PNG files of few colors, and the decision
regions as an animation. It takes two minutes.
"""

import subprocess
import sys
import tempfile
from contextlib import ExitStack, chdir
from pathlib import Path

from PIL import Image

from surestep.record.run import Run
from surestep.reports.animate import write_animation
from surestep.reports.write import report
from tests.browser import Browser, open_browser

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "report"
RATES, SEEDS = (0.003, 0.01, 0.1), (0, 1, 2)
COLORS = 255
WIDTH, PHONE = 1180, 390


def train(folder: Path, *options: str, recipe: str = "digits") -> None:
    """Train a recipe; a run of a rate that is too high may fail."""
    words = ["train", recipe, "--run", str(folder), "-q", "--logging.every", "10", *options]
    subprocess.run([sys.executable, "-m", "surestep", *words], capture_output=True, check=False)


def draw(browser: Browser, page: Path, name: str, first: str, last: str, *, width=WIDTH) -> None:
    """Write the part of a page between two elements as a picture.

    Args:
        browser: any.
        page: an HTML file.
        name: of the picture.
        first: CSS selector of the element at the top.
        last: of the element at the bottom.
        width: of the window, in pixels.
    """
    browser.emulate(width, 6000)
    browser.open(page)
    browser.wait_until(lambda: browser.find_all("main"), "the page")
    browser.wait_until(
        lambda: browser.run(
            "return [...document.querySelectorAll('.chart')].every(f => f.chart.isCurrent)"
        ),
        "the charts",
    )
    top, bottom = browser.run(
        "const box = s => [...document.querySelectorAll(s)].at(-1).getBoundingClientRect();"
        "return [box(arguments[0]).top, box(arguments[1]).bottom]",
        first,
        last,
    )
    path = FOLDER / f"{name}.png"
    browser.screenshot(path)
    with Image.open(path) as whole:
        part = whole.crop((0, max(0, int(top) - 14), width, min(int(bottom) + 14, whole.height)))
        part.convert("RGB").quantize(COLORS).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} kB")


def main() -> None:
    """Train, and write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as stack:
        browser = stack.enter_context(open_browser(WIDTH, 900))
        stack.enter_context(chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        runs = Path("rates")
        for rate in RATES:
            for seed in SEEDS:
                train(runs / f"lr{rate}-{seed}", "--optim.lr", str(rate), "--seed", str(seed))
        one = Path("runs/digits")
        train(one, "--epochs", "30", "--report.samples", "6")
        run, all_runs = report(one), report(sorted(runs.iterdir()), runs / "report.html")
        draw(browser, run, "page", "h1", ".chart:nth-child(2)")
        draw(browser, run, "first-screen", "h1", "#next")
        draw(browser, run, "curves", ".controls", ".chart:nth-child(4)")
        draw(browser, run, "predictions", "#predictions", "#predictions")
        draw(browser, all_runs, "runs", "h1", ".chart:nth-child(2)")
        browser.set_dark(is_dark=True)
        draw(browser, run, "dark", "h1", ".chart:nth-child(2)")
        browser.set_dark(is_dark=False)
        draw(browser, run, "phone", "h1", ".chart:nth-child(1)", width=PHONE)
        spiral = Path("runs/spiral")
        train(spiral, "--epochs", "20", "--validation.every", "1 epoch", recipe="spiral")
        draw(browser, report(spiral), "regions", "#decision-regions", "#decision-regions")
        print(write_animation(Run(spiral), FOLDER / "spiral.webp"))


if __name__ == "__main__":
    main()
