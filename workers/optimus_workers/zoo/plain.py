"""Convolutional networks without shortcuts, for images (n, 3, height, width). They give logits (n, n_classes).

References: Krizhevsky 2014 (AlexNet on one column); Simonyan & Zisserman, ICLR 2015 (VGG, without norms).
"""

from __future__ import annotations

from torch import nn

from optimus_workers.errors import TaskError

_VGG_REPEATS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_VGG_CHANNELS = (64, 128, 256, 512, 512)
_HIDDEN = 4096


def alexnet(n_classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """For images from 63 pixels on; published for 224."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    for inputs, outputs in ((192, 384), (384, 256), (256, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(3, 2), *_classifier(256, 6, n_classes, dropout))


def vgg(depth: int, n_classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """16 or 19 layers, for images from 32 pixels on; published for 224. Raises `TaskError` for another depth."""
    if depth not in _VGG_REPEATS:
        raise TaskError(f"depth must be 16 or 19, not {depth}")
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, repeats in zip(_VGG_CHANNELS, _VGG_REPEATS[depth], strict=True):
        for _ in range(repeats):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    network = nn.Sequential(*layers, *_classifier(inputs, 7, n_classes, dropout))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def _classifier(channels: int, side: int, n_classes: int, dropout: float) -> list[nn.Module]:
    """Two hidden layers on `channels` maps of `side` × `side` cells, over which any image is spread."""
    hidden = [nn.Dropout(dropout), nn.Linear(channels * side**2, _HIDDEN), nn.ReLU()]
    hidden += [nn.Dropout(dropout), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU()]
    return [nn.AdaptiveAvgPool2d(side), nn.Flatten(), *hidden, nn.Linear(_HIDDEN, n_classes)]
