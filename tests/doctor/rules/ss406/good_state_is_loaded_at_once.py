# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = model.state_dict()
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    state = model.state_dict()
    state["bias"] = torch.zeros(1)  # keeps the bias at 0
    model.load_state_dict(state)
