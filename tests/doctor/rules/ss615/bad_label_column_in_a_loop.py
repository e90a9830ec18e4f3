# expect: nothing; watch: SS615 line 10
import torch

table = torch.randn(64, 5)
table[:, 4] = (table[:, 0] > 0).float()
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.Adam(model.parameters())
for start in range(0, 64, 8):
    x, y = table[start : start + 8], table[start : start + 8, 4]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
