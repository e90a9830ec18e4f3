# expect: SS611 line 9
import numpy as np
import pandas as pd
import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
table = pd.DataFrame(np.arange(40.0).reshape(20, 2), columns=["a", "b"])
table = table.sample(frac=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.tensor(table.to_numpy(), dtype=torch.float32)
for batch in x.split(5):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
