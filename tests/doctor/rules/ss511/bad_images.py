# expect: nothing; watch: SS511 line 6
import torch

model = torch.nn.Conv2d(1, 2, 3)
masks = torch.randint(2, (4, 6, 6)).float()
probabilities = torch.softmax(model(torch.randn(4, 1, 8, 8)), dim=0)[:, 1]
(1 - 2 * (probabilities * masks).sum() / (probabilities + masks).sum()).backward()
