"""The cases that CI kills cover every pair of values of two dimensions."""

from tests.torture.cases import DIMENSIONS, all_pairs, pairs_of, pairwise, product


def test_every_pair_of_values_is_in_a_case():
    covered = set().union(*map(pairs_of, pairwise()))
    assert covered == all_pairs()


def test_number_of_pairs_equals_a_count_by_hand():
    sizes = [len(values) for values in DIMENSIONS.values()]
    assert len(all_pairs()) == (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2 == 229


def test_cases_are_few_and_deterministic():
    assert len(pairwise()) <= 24
    assert pairwise() == pairwise()


def test_list_without_a_case_misses_a_pair():
    cases = pairwise()
    assert set().union(*map(pairs_of, cases[1:])) != all_pairs()


def test_full_product_has_every_case_once():
    cases = list(product())
    assert len(cases) == len(set(cases)) == 3 * 2 * 4 * 2 * 4 * 3 * 3 * 2
