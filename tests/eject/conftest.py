import pytest

from tests.read_modules import forget_modules


@pytest.fixture(autouse=True)
def _forget_recipes(tmp_path):
    with forget_modules(tmp_path):
        yield
