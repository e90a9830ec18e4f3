# expect: SS411 line 13
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.qkv = nn.Linear(config["width"], 3 * config["width"])
        self.drop = nn.Dropout(config["dropout"])

    def attend(self, query, key, value):
        return nn.functional.scaled_dot_product_attention(query, key, value, None, self.drop.p)

    def forward(self, x):
        return self.drop(self.attend(*self.qkv(x).chunk(3, dim=-1)))


print(Attention({"width": 8, "dropout": 0.1}).eval()(torch.randn(2, 5, 8)))
