# expect: nothing
import io

import torch

model = torch.nn.Linear(4, 2)
with torch.inference_mode():
    features = model(torch.randn(8, 4))
torch.save({"features": features, "weight": model.weight.detach()}, io.BytesIO())
