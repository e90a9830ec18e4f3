# expect: nothing
import pytest
import torch

scores, mask = torch.zeros(2, 3), torch.tensor([True, False, True])
scores = scores.masked_fill(mask, float("-inf"))
seen, names = set(), ["a"]
seen.add("a")
names.copy()
scores.clamp_(-1, 1)
torch.add(scores, scores, alpha=2, out=scores)
print(scores.unsqueeze(0), seen)
with pytest.raises(IndexError):
    scores.unsqueeze(7)
