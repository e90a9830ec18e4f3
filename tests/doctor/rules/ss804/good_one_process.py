# expect: nothing
import io

import torch

model = torch.nn.Linear(4, 1)
torch.save(model.state_dict(), io.BytesIO())
