"""The cases that are killed in CI hold every pair of what a run may be like."""

from tests.torture.cases import DIMENSIONS, all_pairs, pairs_of, pairwise, product


def test_every_pair_of_values_is_in_a_case():
    covered = set().union(*map(pairs_of, pairwise()))
    assert covered == all_pairs()


def test_pairs_are_counted_by_hand():
    sizes = [len(values) for values in DIMENSIONS.values()]
    assert len(all_pairs()) == (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2 == 229


def test_cases_are_few_and_the_same_each_time():
    assert len(pairwise()) <= 24
    assert pairwise() == pairwise()


def test_a_list_that_lacks_a_case_lacks_a_pair():
    cases = pairwise()
    assert set().union(*map(pairs_of, cases[1:])) != all_pairs()


def test_the_whole_product_has_every_case_once():
    cases = list(product())
    assert len(cases) == len(set(cases)) == 3 * 2 * 4 * 2 * 4 * 3 * 3 * 2
