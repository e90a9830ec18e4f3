# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

is_cuda = torch.cuda.is_available()
device = torch.device("cuda" if is_cuda else "cpu")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8, shuffle=True):
    x = x.pin_memory() if is_cuda else x
    optimizer.zero_grad()
    model(x.to(device, non_blocking=True)).pow(2).mean().backward()
    optimizer.step()
