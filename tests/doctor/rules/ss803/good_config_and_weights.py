# expect: nothing
import io

import torch

config = {"in_features": 4, "out_features": 1}
net = torch.nn.Linear(**config)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
state = {"config": config, "model": net.state_dict(), "optimizer": optimizer.state_dict()}
torch.save(state, io.BytesIO())
