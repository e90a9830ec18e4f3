# expect: SS118 line 5
import torch

scores, mask = torch.zeros(2, 3), torch.tensor([True, False, True])
scores.masked_fill(mask, float("-inf"))
print(scores.softmax(-1))
