# expect: SS411 line 15
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Attention(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.dropout = dropout

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout, is_causal=True
        )


model = Attention(8, 0.2)
model.eval()
print(model(torch.randn(2, 5, 8)))
