# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    model(x.to(device)).pow(2).mean().backward()
    optimizer.step()
