# expect: nothing
import io

import torch
from torch import nn

file = io.BytesIO()
torch.save(nn.Linear(4, 1).state_dict(), file)
file.seek(0)
model = nn.Linear(4, 1)
model.load_state_dict(torch.load(file, map_location="cpu"))
model = nn.DataParallel(model)
with torch.inference_mode():
    print(model(torch.randn(8, 4)).mean())
