"""Numbers of some calls that are kept in one tensor."""

import torch

from surestep.doctor.runtime.series import Series


def test_all_numbers_of_a_short_run_are_kept():
    series = Series(8)
    for number in range(8):
        series.add(torch.tensor(float(number)), number)
    assert series.read() == [(float(number), number) for number in range(8)]


def test_evenly_spaced_numbers_of_a_long_run_are_kept():
    series = Series(8)
    for number in range(100):
        series.add(torch.tensor(float(number)), number)
        assert len(series.read()) <= 8
    kept = [label for _, label in series.read()]
    assert kept == list(range(0, 100, 16))
    assert [value for value, _ in series.read()] == kept


def test_numbers_do_not_change_with_the_tensors_they_were_read_from():
    series, value = Series(8), torch.ones((), requires_grad=True)
    series.add(value, "first")
    value.detach().zero_()
    assert series.read() == [(1.0, "first")]


def test_series_without_a_number_is_empty():
    assert Series(8).read() == []
