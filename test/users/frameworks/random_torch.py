import torch
from model import x

net = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.Dropout(0.5)).train()
drawn = torch.compile(net, backend="pyc")
torch.manual_seed(1)
first, second = drawn(x), drawn(x)
share = float((first == 0).float().mean())
assert 0.4 < share < 0.6 and not torch.equal(first, second), share
noise = torch.compile(lambda t: t + torch.randn_like(t), backend="pyc")
assert 0.5 < float((noise(torch.zeros(4096))).std()) < 1.5
print("random", share)
