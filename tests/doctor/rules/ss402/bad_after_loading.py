# expect: SS402 line 16; watch: SS402 line 17
import io

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
model.load_state_dict(torch.load(file))
x, y = torch.randn(16, 4), torch.randint(2, (16,))
correct = 0
with torch.no_grad():
    for images, labels in ((x[:8], y[:8]), (x[8:], y[8:])):
        predicted = model(images).argmax(dim=1)
        correct += (predicted == labels).sum().item()
print(correct / len(y))
