# expect: nothing; watch: skip, needs a GPU
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layer = nn.TransformerEncoderLayer(512, 8, 512, batch_first=True).to(device)
optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-4)
for _ in range(6):
    x = torch.randn(2, 4, 512, device=device)
    loss = layer(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
