# expect: nothing
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.0, is_causal=True)


print(Attention()(torch.randn(2, 5, 8)))
