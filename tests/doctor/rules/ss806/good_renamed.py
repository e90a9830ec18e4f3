# expect: nothing
import io

import torch

model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
weights = {key.removeprefix("module."): value for key, value in model.state_dict().items()}
torch.save(weights, io.BytesIO())
