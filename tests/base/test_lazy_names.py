import ast
from importlib import import_module
from pathlib import Path

import pytest

from surestep import samplers, tracking

PACKAGES = [samplers, tracking]


def names_for_types(package):
    """Return the module of each name that type checkers see in a package."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body for alias in node.names}


@pytest.mark.parametrize("package", PACKAGES)
def test_lazy_names_are_those_that_type_checkers_see(package):
    names = names_for_types(package)
    assert dir(package) == package.__all__ == sorted(names)
    for name, module in names.items():
        vars(package).pop(name, None)
        assert getattr(package, name) is getattr(import_module(module), name)
        assert name in vars(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_of_a_package_has_a_lazy_name(package):
    modules = {path.stem for path in Path(package.__file__).parent.iterdir()}
    assert modules.isdisjoint(package.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_name_of_a_package_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"{package.__name__}' has no attribute 'shufled'"):
        package.shufled  # noqa: B018
