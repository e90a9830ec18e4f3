"""The schemas of the options are built when they are used: not all at the import."""

import pytest

from surestep.config.config import Config
from tests.forked import python_forked

IN_THREADS = """
from threading import Barrier, Thread

from surestep.config.config import Config
from surestep.config.group import _CAN_DEFER

assert Config.__pydantic_complete__ is not _CAN_DEFER
start, made = Barrier(8), []


def make():
    start.wait()
    made.append(Config(epochs=1, optim={"lr": 0.1}, schedule="cosine").set_options())


threads = [Thread(target=make) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert made == [{"epochs": 1.0, "optim.lr": 0.1, "schedule.name": "cosine"}] * 8, made
"""


def _models(schema):
    """Yield the class of each model in a schema of pydantic."""
    if isinstance(schema, dict):
        if schema.get("type") == "model":
            yield schema["cls"]
        schema = list(schema.values())
    if isinstance(schema, (list, tuple)):
        for part in schema:
            yield from _models(part)


def test_schema_of_the_config_contains_no_schema_of_a_group():
    Config(epochs=1)
    assert list(_models(Config.__pydantic_core_schema__)) == [Config]


@pytest.mark.slow("imports surestep again")
def test_threads_can_make_the_first_config_at_the_same_time(tmp_path):
    done = python_forked(tmp_path, "-c", IN_THREADS)
    assert (done.returncode, done.stderr) == (0, "")
