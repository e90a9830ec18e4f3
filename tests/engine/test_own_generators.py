import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from surestep.engine.own_generators import OwnGenerators, own_generators, seed_late_generators

GLOBAL = random.Random(0)


class Holder:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("rng",)

    def __init__(self):
        self.rng = random.Random(0)


class OfClass:
    rng = random.Random(0)


class Naming:
    def __getitem__(self, index):
        return GLOBAL.random()


class Bound:
    def __init__(self):
        self.inner = OfClass()

    def method(self, x):
        return x


class Hooked:
    def __init__(self):
        self.rng, self.seeds = random.Random(0), []

    def set_sample_seed(self, seed):
        self.seeds.append(seed)


def closing_over(rng):
    return lambda x: x + rng.random()


def of_global(x):
    return x + GLOBAL.random()


def paths(value):
    return [each.path for each in OwnGenerators(("dataset", value)).found]


FOUND = {
    "attribute": (Holder(rng=random.Random(0)), "dataset.rng"),
    "in a transform": (Holder(transform=Holder(rng=random.Random(0))), "dataset.transform.rng"),
    "in a list": (Holder(steps=[1, random.Random(0)]), "dataset.steps[1]"),
    "in a dict": (Holder(by={"a": random.Random(0)}), "dataset.by['a']"),
    "in a slot": (Slotted(), "dataset.rng"),
    "class attribute": (OfClass(), "dataset.rng"),
    "closure": (Holder(f=closing_over(random.Random(0))), "dataset.f:rng"),
    "global": (Holder(f=of_global), "dataset.f:GLOBAL"),
    "global of a method": (Naming(), "dataset.__getitem__:GLOBAL"),
    "in a partial": (Holder(f=partial(map, random.Random(0))), "dataset.f.args[0]"),
    "attribute of a bound method": (Holder(f=Bound().method), "dataset.f.__self__.inner.rng"),
}


@pytest.mark.parametrize("where", FOUND)
def test_random_generator_within_a_dataset_is_found(where):
    value, path = FOUND[where]
    assert paths(value) == [path]


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (torch.Generator, lambda g: float(torch.rand((), generator=g))),
        (random.Random, lambda g: g.random()),
        (np.random.RandomState, lambda g: g.randn()),
        (np.random.default_rng, lambda g: g.normal()),
        (lambda: np.random.Generator(np.random.Philox()), lambda g: g.random(dtype=np.float32)),
        (np.random.SFC64, lambda g: int(g.random_raw())),
    ],
    ids=["torch", "python", "RandomState", "PCG64", "Philox", "bit generator"],
)
def test_reseeded_generator_depends_only_on_the_seed(make, draw):
    one, other = make(), make()
    (own,) = OwnGenerators(("dataset", Holder(rng=one))).found
    (same,) = OwnGenerators(("dataset", Holder(rng=other))).found
    draw(one), draw(one), draw(other)
    own.manual_seed(5), same.manual_seed(5)
    drawn = [draw(one) for _ in range(3)]
    assert drawn == [draw(other) for _ in range(3)]
    own.manual_seed(6)
    assert draw(one) != drawn[0]


def test_two_generators_of_one_dataset_are_seeded_differently():
    holder = Holder(a=random.Random(0), b=random.Random(0))
    OwnGenerators(("dataset", holder)).reseed(5)
    assert holder.a.random() != holder.b.random()


def test_two_generators_with_the_same_path_are_seeded_differently():
    class Shadowing:
        rng = random.Random(0)

        def __init__(self):
            self.rng = random.Random(0)

    holder = Shadowing()
    found = OwnGenerators(("dataset", holder))
    assert [each.path for each in found.found] == ["dataset.rng", "dataset.rng#2"]
    found.reseed(5)
    assert holder.rng.random() != Shadowing.rng.random()


def test_seed_of_a_generator_does_not_depend_on_the_address_of_its_key():
    class Key:
        pass

    keys = [Key(), Key(), torch.nn.Parameter(torch.zeros(3)), ("left", 1), 2]
    first = OwnGenerators(("", {key: torch.Generator() for key in keys}))
    keys[:3] = Key(), Key(), torch.nn.Parameter(torch.ones(3))
    second = OwnGenerators(("", {key: torch.Generator() for key in keys}))
    assert [found.path for found in first.found] == [found.path for found in second.found]
    assert len({found.path for found in first.found}) == 5


def test_generator_referenced_twice_is_found_once():
    rng = random.Random(0)
    assert len(paths(Holder(a=rng, b=rng))) == 1


def test_set_sample_seed_hook_is_called_instead_of_reseeding():
    holder = Holder(transform=Hooked())
    (own,) = OwnGenerators(("dataset", holder)).found
    assert (own.path, own.kind) == ("dataset.transform", "Hooked")
    own.manual_seed(5), own.manual_seed(6)
    assert len(set(holder.transform.seeds)) == 2


def test_system_random_has_no_seed():
    (own,) = OwnGenerators(("dataset", Holder(rng=random.SystemRandom()))).found
    assert own.seed is None
    own.manual_seed(5)


def test_default_generator_and_large_containers_are_skipped():
    large = Holder(rows=list(range(10**6)), files={str(i): i for i in range(10**5)})
    large.own, large.all = torch.default_generator, [large]
    assert paths(large) == []


def test_global_generators_of_libraries_are_skipped():
    assert paths(Holder(f=random.shuffle, g=np.random.shuffle, h=nn.init.kaiming_normal_)) == []


@pytest.mark.parametrize(
    ("holder", "make"),
    [
        (Holder(rng=None), lambda it: vars(it).update(rng=random.Random(0))),
        (Holder(), lambda it: vars(it).update(rng=random.Random(0))),
        (Holder(inner=Holder(rng=None)), lambda it: vars(it.inner).update(rng=random.Random(0))),
        (Holder(of_worker={}), lambda it: it.of_worker.update({0: random.Random(0)})),
    ],
    ids=["None before", "missing before", "in an attribute", "in a dict"],
)
def test_generator_created_later_is_found(holder, make):
    own = OwnGenerators(("dataset", holder))
    assert not own.has_new()
    make(holder)
    assert own.has_new()
    assert len(own.found) == 1
    assert not own.has_new()


def test_changed_attributes_that_are_not_generators_are_ignored():
    holder = Holder(last=None)
    own = OwnGenerators(("dataset", holder))
    holder.last, holder.more = 3, 4
    assert not own.has_new()


def test_generator_made_in_the_first_step_is_seeded_from_then_on():
    model, generators = nn.Linear(2, 1), []
    found = own_generators(model, {})
    model.rng = np.random.default_rng()
    with pytest.warns(UserWarning, match=r"model\.rng .* was created in the first step"):
        seed_late_generators(found, generators)
    drawn = []
    for _ in range(2):
        for generator in generators:
            generator.manual_seed(3)
        drawn.append(model.rng.random())
    assert drawn[0] == drawn[1]


def count_searches(monkeypatch):
    calls, search = [], OwnGenerators._find
    monkeypatch.setattr(OwnGenerators, "_find", lambda own: (calls.append(own), search(own))[1])
    return calls


def test_refresh_searches_again_only_after_an_object_was_added_or_replaced(monkeypatch):
    inner = Holder(rng=random.Random(0), later=None, rows=[1, 2])
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    model[1].inner = inner
    calls = count_searches(monkeypatch)
    own = own_generators(model, {"loss": len})

    def is_found(rng):
        found = own.refresh()
        assert own.refresh() is found
        return any(each.seed == rng.seed for each in found)

    assert is_found(inner.rng)
    model.eval()
    inner.rows.append(3)
    assert is_found(inner.rng)
    assert len(calls) == 1
    inner.rng = random.Random(1)
    assert is_found(inner.rng)
    inner.later = random.Random(2)
    assert is_found(inner.later)
    inner.another = random.Random(3)
    assert is_found(inner.another)
    model[1].inner = Holder(rng=random.Random(4))
    assert is_found(model[1].inner.rng)
    assert not is_found(inner.rng)
    assert len(calls) == 5
