# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
print(torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0))
