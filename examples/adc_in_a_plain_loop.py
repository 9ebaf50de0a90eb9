"""ADC in a plain PyTorch loop: any two-view loss and any frozen encoder, with three lines of glf.

Run: python examples/adc_in_a_plain_loop.py
"""

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.transforms import v2

from glf import ADC, load_images  # 1

torch.manual_seed(0)
pixels = torch.from_numpy(load_images("fashion-mini").pixels[:1024]).permute(0, 3, 1, 2).float() / 255
views = v2.Compose([v2.RandomResizedCrop(28, scale=(0.4, 1.0), antialias=True), v2.RandomHorizontalFlip()])

backbone = nn.Sequential(nn.Conv2d(1, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Flatten())
projector = nn.Sequential(nn.LazyLinear(128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))
frozen = nn.Flatten()  # the prior: a frozen encoder, here just the pixels; a pretrained network is better
model = nn.Sequential(backbone, projector)
model(pixels[:2])  # initialises the lazy layer
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
adc = ADC()  # 2

for step in range(8):
    x = pixels[torch.randint(len(pixels), (128,))]
    z0, z1 = model(views(x)), model(views(x))
    with torch.no_grad():
        prior = frozen(x)
    align = -F.cosine_similarity(z0, z1).mean()  # alone, this collapses
    added = adc(z0, z1, prior=prior)  # 3
    loss = align + added
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  align {align:.3f}  adc {added:.3f}  spread of z {F.normalize(z0).std(0).mean():.3f}")
