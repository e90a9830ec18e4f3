# expect: nothing; watch: skip, imports a module that is not there
import torch
from elsewhere import model

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best_loss, best = float("inf"), None
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if loss.item() < best_loss:
        best_loss = loss.item()
        best = {key: value.cpu() for key, value in model.state_dict().items()}
print(torch.nn.Linear(4, 1).load_state_dict(best))
