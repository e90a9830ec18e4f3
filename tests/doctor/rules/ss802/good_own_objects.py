# expect: nothing
import io

import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 1).to(device)
file = io.BytesIO()
torch.save({"model": model.state_dict(), "options": frozenset(("wide",))}, file)
file.seek(0)
checkpoint = torch.load(file, device, weights_only=False)
model.load_state_dict(checkpoint["model"])
