# expect: nothing
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    x = torch.randn(8, 16, device=device)
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
