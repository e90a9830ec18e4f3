# expect: nothing
import torch

try:
    from torch.amp import GradScaler
except ImportError:
    from torch.cuda.amp import GradScaler

scaler = GradScaler(enabled=False)
print(scaler.is_enabled(), torch.__version__)
