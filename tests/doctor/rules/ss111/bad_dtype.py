# expect: SS111 line 11
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.MSELoss()
for _ in range(5):
    optimizer.zero_grad()
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        output = model(torch.randn(8, 4))
    criterion(output.float(), torch.randn(8, 1)).backward()
    optimizer.step()
