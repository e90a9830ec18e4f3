# expect: nothing
import torch

try:
    from torch_geometric.nn import GCNConv
except ImportError:
    print("This example needs torch_geometric.")
else:
    model = GCNConv(4, 1)
    print(torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4))
