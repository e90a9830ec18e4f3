# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best, state = 1e9, {}
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if loss.item() < best:
        best = loss.item()
        state = {key: value.clone() for key, value in model.state_dict().items()}
model.load_state_dict(state)
