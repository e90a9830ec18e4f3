"""The names in a statement, and the text of an expression."""

import ast

import pytest

from surestep.doctor.source.nodes import describe_source, find_names

STATEMENT = "total[i] += rate * layer.weight"


@pytest.mark.parametrize(
    ("text", "kind", "names"),
    [
        (STATEMENT, ast.expr_context, {"total", "i", "rate", "layer"}),
        (STATEMENT, ast.Store, set()),
        ("a, (b, *c) = d", ast.Store, {"a", "b", "c"}),
        ("a, (b, *c) = d", ast.Load, {"d"}),
        ("del a", ast.Load, set()),
    ],
)
def test_names_are_those_that_are_read_or_assigned(text, kind, names):
    assert find_names(ast.parse(text), kind) == names


def test_source_of_an_expression_is_in_one_line_and_short():
    call = ast.parse("f(\n    1,\n    [2,\n3])", mode="eval").body
    assert describe_source(call) == "f(1, [2, 3])"
    long = ast.parse("f(" + ", ".join(["name"] * 20) + ")", mode="eval").body
    assert describe_source(long) == ast.unparse(long)[:57] + "..."


@pytest.mark.parametrize("node", [None, ast.parse("x = 1").body[0]])
def test_what_is_not_an_expression_is_it(node):
    assert describe_source(node) == "it"
