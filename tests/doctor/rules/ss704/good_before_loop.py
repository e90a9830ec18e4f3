# expect: nothing
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
target = torch.zeros(8, 1).to(device)
for _ in range(10):
    optimizer.zero_grad()
    (model(torch.randn(8, 4, device=device)) - target).pow(2).mean().backward()
    optimizer.step()
