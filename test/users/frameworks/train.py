import torch
from model import model, x

model.train()
step = torch.compile(model, backend="pyc")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []
for _ in range(5):
    optimizer.zero_grad()
    loss = step(x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
assert losses[-1] < losses[0], losses
print("trained", losses)
