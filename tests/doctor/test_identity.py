"""A dictionary whose keys need no hash, and are not kept alive."""

from surestep.doctor.identity import IdentityDict


class Same:
    """Equal to everything, and without a hash."""

    def __eq__(self, other):
        return True


def test_keys_are_compared_by_identity_and_are_not_kept():
    first, second, values = Same(), Same(), IdentityDict()
    values[first], values[second] = 1, 2
    assert (values[first], values[second], values.get(Same())) == (1, 2, None)
    assert first in values
    assert len(list(values)) == 2
    del first
    assert list(values.values()) == [2]
    del values[second]
    assert len(values) == 0
