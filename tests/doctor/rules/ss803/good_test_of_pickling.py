# expect: nothing
import io

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
file = io.BytesIO()
torch.save(model, file)
file.seek(0)
copy = torch.load(file, weights_only=False)
x = torch.randn(2, 4)
assert torch.equal(copy(x), model(x))
