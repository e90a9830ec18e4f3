# expect: nothing
import copy

from torch import nn


def make() -> nn.Module:
    return nn.Linear(4, 1)


model, target, average = make(), make(), None
average = copy.deepcopy(model)
target.load_state_dict(model.state_dict())
for old, new in zip(average.parameters(), model.parameters(), strict=True):
    old.data.lerp_(new.data, 0.1)
model.load_state_dict(model.state_dict())
