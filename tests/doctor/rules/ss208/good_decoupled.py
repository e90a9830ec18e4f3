# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
options = {"lr": 1e-3}
print(torch.optim.Adam(model.parameters(), **options))
print(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4))
