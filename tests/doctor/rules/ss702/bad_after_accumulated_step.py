# expect: SS702 line 15; watch: skip, needs a GPU
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.AdamW(model.parameters())
loss_fn = torch.nn.MSELoss()
loader = [[(torch.randn(8, 4), torch.randn(8, 1))] * 2 for _ in range(10)]
for batch in loader:
    for x, y in batch:
        loss = loss_fn(model(x.to(device)), y.to(device))
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
