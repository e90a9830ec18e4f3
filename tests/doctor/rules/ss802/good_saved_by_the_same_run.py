# expect: nothing
import io

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 1).to(device)
best, file = float("inf"), io.BytesIO()
for _ in range(3):
    with torch.inference_mode():
        loss = model(torch.randn(8, 4, device=device)).pow(2).mean().item()
    if loss < best:
        best = loss
        file.seek(0)
        torch.save(model.state_dict(), file)
file.seek(0)
model.load_state_dict(torch.load(file))
