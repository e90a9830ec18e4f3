# expect: SS706 line 10
import torch

device = torch.device("cpu")
samples = [{"x": torch.randn(4), "y": torch.randn(1)} for _ in range(16)]
loader = torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True, num_workers=0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    x = batch["x"].to(device, non_blocking=True)
    optimizer.zero_grad()
    (model(x) - batch["y"]).pow(2).mean().backward()
    optimizer.step()
