"""ADC in somebody else's loop: lightly's NT-Xent and model parts, plus five lines of glf.

Run: python examples/adc_with_lightly.py
"""

import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from torch import nn
from torchvision.transforms import v2

from glf import ADC  # 1
from glf.data.sources import load

images = load("fashion-mini")
pixels = torch.from_numpy(images.pixels[:1024]).permute(0, 3, 1, 2).float() / 255
flip = v2.RandomHorizontalFlip()
crop = v2.RandomResizedCrop(28, scale=(0.5, 1.0), antialias=True)

backbone = nn.Sequential(nn.Conv2d(1, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Flatten())
model = nn.Sequential(backbone, SimCLRProjectionHead(64 * 36, 128, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
theirs = NTXentLoss(temperature=0.5)
adc = ADC()  # 2

for step in range(8):
    x = pixels[torch.randint(len(pixels), (128,), generator=torch.Generator().manual_seed(step))]
    z0, z1 = model(flip(crop(x))), model(flip(crop(x)))
    prior = x.flatten(1)  # 3: any frozen features of the images; here their pixels
    base, added = theirs(z0, z1), adc(z0, z1, prior=prior)  # 4
    loss = base + added  # 5
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  nt-xent {base:.3f}  adc {added:.3f}")
