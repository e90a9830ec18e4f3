"""A pytest plugin: write the processor seconds of each test, with those of its processes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE = Path(os.environ.get("SECONDS_FILE", "seconds.jsonl"))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    begun = os.times()
    yield
    ended = os.times()
    spent = sum(ended[:4]) - sum(begun[:4])
    line = json.dumps([item.nodeid, round(spent, 3), round(ended[4] - begun[4], 3)])
    with FILE.open("a", encoding="utf-8") as file:  # a short line is written at once
        file.write(f"{line}\n")
