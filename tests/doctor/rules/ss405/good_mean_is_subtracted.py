# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
output = model(torch.randn(8, 4))
(output - output.mean(dim=0)).pow(2).mean().backward()
