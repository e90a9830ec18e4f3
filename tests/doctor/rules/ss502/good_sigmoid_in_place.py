# expect: nothing
import torch
import torch.nn.functional as F

layer = torch.nn.Linear(4, 1)
output = layer(torch.randn(8, 4))
output.sigmoid_()
F.binary_cross_entropy(output, torch.randint(2, (8, 1)).float()).backward()
