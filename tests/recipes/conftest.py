from tests.cli.conftest import folder, recipe

__all__ = ["folder", "recipe"]
