# expect: nothing
import torch

if hasattr(torch.amp, "GradScaler"):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
else:
    scaler = torch.cuda.amp.GradScaler(enabled=False)
print(scaler.is_enabled())
