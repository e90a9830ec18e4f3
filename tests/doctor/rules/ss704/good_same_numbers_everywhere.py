# expect: nothing
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(0)
for _ in range(10):
    noise = torch.randn(8, 4, generator=generator).to(device)
    optimizer.zero_grad()
    model(noise).pow(2).mean().backward()
    optimizer.step()
