# expect: nothing
import io

import torch

file = io.BytesIO()
torch.save(torch.nn.Linear(4, 1).state_dict(), file)
file.seek(0)
model = torch.nn.Linear(4, 1)
model.load_state_dict(torch.load(file, map_location="cpu"))
with torch.inference_mode():
    print(model(torch.randn(8, 4)).mean())
model = torch.nn.Linear(4, 1)
with torch.inference_mode():
    print(model(torch.randn(8, 4)).mean())
