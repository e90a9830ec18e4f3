# expect: nothing
import io

import torch

model = torch.nn.Linear(4, 1)
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
model.load_state_dict(torch.load(file))
