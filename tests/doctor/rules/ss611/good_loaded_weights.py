# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
model.load_state_dict({"weight": torch.zeros(1, 4), "bias": torch.zeros(1)})
torch.manual_seed(0)
x = torch.randn(20, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
