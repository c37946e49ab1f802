"""Small networks, and images of odd and even sizes."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from hmerbench.models.comer import CoMER
from hmerbench.models.settings import CoMERSettings

SMALL = CoMERSettings(
    d_model=32, growth_rate=4, num_layers=2, nhead=4, dim_feedforward=48, dc=6, dropout=0.1, encoder_dropout=0.1
)


def small(seed: int = 3, **changes: object) -> CoMER:
    """A small network whose norms are far from the identity, so that skipping one would show."""
    torch.manual_seed(seed)
    model = CoMER(replace(SMALL, **changes))  # pyright: ignore[reportArgumentType]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)  # pyright: ignore[reportArgumentType]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # pyright: ignore[reportArgumentType]
    return model.eval()


def padded(images: list[Tensor], extra: int = 0) -> tuple[Tensor, Tensor]:
    """Images [H, W] as one batch, and its padding mask; `extra`: pixels of padding beyond what is needed."""
    height, width = (max(image.shape[i] for image in images) + extra for i in (0, 1))
    batch = torch.zeros(len(images), 1, height, width)
    mask = torch.ones(len(images), height, width, dtype=torch.bool)
    for i, image in enumerate(images):
        h, w = image.shape
        batch[i, 0, :h, :w], mask[i, :h, :w] = image, False
    return batch, mask


SIZES = [(33, 70), (64, 31), (17, 97), (50, 50)]  # odd and even sizes at every resolution
IMAGES = [torch.rand(size, generator=torch.Generator().manual_seed(i)) for i, size in enumerate(SIZES)]
