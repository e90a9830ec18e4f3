"""Numbers of some calls: those of the CPU are read at once, those of a device stay there."""

import pytest
import torch

from surestep.doctor.runtime.series import Series


@pytest.fixture(params=["cpu", "device"])
def series(request, monkeypatch):
    """Numbers of a device are those of the CPU that are not read before the end."""
    if request.param == "device":
        monkeypatch.setattr(torch.Tensor, "to_local", None, raising=False)
        monkeypatch.setattr(torch.Tensor, "item", lambda _: pytest.fail("it waits"))
    return Series(8)


def test_all_numbers_of_a_short_run_are_kept(series):
    for number in range(8):
        series.add(torch.tensor(float(number)), number)
    assert series.read() == [(float(number), number) for number in range(8)]


def test_evenly_spaced_numbers_of_a_long_run_are_kept(series):
    for number in range(100):
        series.add(torch.tensor(float(number)), number)
        assert len(series.read()) <= 8
    kept = [label for _, label in series.read()]
    assert kept == list(range(0, 100, 16))
    assert [value for value, _ in series.read()] == kept


def test_numbers_do_not_change_with_the_tensors_they_were_read_from(series):
    value = torch.ones((), requires_grad=True)
    series.add(value, "first")
    value.detach().zero_()
    assert series.read() == [(1.0, "first")]


def test_series_without_a_number_is_empty():
    assert Series(8).read() == []
