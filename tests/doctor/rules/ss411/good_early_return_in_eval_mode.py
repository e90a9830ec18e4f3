# expect: nothing
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.dropout = dropout

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        if not self.training:
            return F.scaled_dot_product_attention(query, key, value)
        return F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout)


print(Attention(0.1)(torch.randn(2, 5, 8)))
