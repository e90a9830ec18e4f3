# expect: SS105 line 17; watch: nothing
import torch
from torch import nn


class Trainer(nn.Module):
    def __init__(self, nets):
        super().__init__()
        self.nets = nets
        for index, net in enumerate(nets):
            setattr(self, f"optim{index}", torch.optim.Adam(net.parameters()))
            setattr(self, f"scaler{index}", torch.amp.GradScaler("cuda"))

    def update(self, index):
        optimizer = getattr(self, f"optim{index}")
        scaler = getattr(self, f"scaler{index}")
        nn.utils.clip_grad_norm_(self.nets[index].parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
