# expect: nothing
import io

import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
file = io.BytesIO()
torch.save(torch.randn(8, 4), file)
file.seek(0)
features = torch.load(file)
print(features.to(device).shape)
