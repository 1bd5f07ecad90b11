"""Small image classifiers, from images (n, 1, height, width) to logits (n, n_classes); their loss and test metrics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from optimus_workers.data.examples import Examples


def mlp(n_pixels: int, width: int, depth: int, n_classes: int) -> nn.Module:
    """A perceptron with `depth` hidden layers of `width` units."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in [n_pixels] + [width] * (depth - 1):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
    return _initialised(nn.Sequential(*layers, nn.Linear(width, n_classes)))


def cnn(height: int, width: int, channels: int, n_classes: int) -> nn.Module:
    """Two convolutions at full resolution, pooling, and a linear layer."""
    network = nn.Sequential(
        nn.Conv2d(1, channels, kernel_size=3, padding=1),  # (n, channels, height, width)
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1),  # (n, 2·channels, height, width)
        nn.ReLU(),
        nn.MaxPool2d(2),  # (n, 2·channels, height/2, width/2)
        nn.Flatten(),
        nn.Linear(2 * channels * (height // 2) * (width // 2), n_classes),
    )
    return _initialised(network)


def resnet(channels: int, blocks: int, n_classes: int) -> nn.Module:
    """A residual network: a stem, `blocks` blocks, a wider stage at half the resolution with as many, mean pooling."""
    network = nn.Sequential(
        nn.Conv2d(1, channels, kernel_size=3, padding=1, bias=False),
        _norm(channels),
        nn.ReLU(),
        *(ResidualBlock(channels, channels) for _ in range(blocks)),
        ResidualBlock(channels, 2 * channels, stride=2),
        *(ResidualBlock(2 * channels, 2 * channels) for _ in range(blocks - 1)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, n_classes),
    )
    return _initialised(network)


class ResidualBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)), the basic block of He et al., CVPR 2016."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False),
            _norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False),
            _norm(outputs),
        )
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same_shape else nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride)
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        activated: Tensor = self.activation(self.residual(images) + self.shortcut(images))
        return activated


def _norm(channels: int) -> nn.Module:
    """GroupNorm, not BatchNorm.

    It looks at one example at a time, so the result does not depend on how a batch is cut into micro-batches, and it
    keeps no running statistics, which are not parameters and would have to be synchronised among the workers.
    """
    return nn.GroupNorm(num_groups=max(1, channels // 4), num_channels=channels)


def _initialised(network: nn.Module) -> nn.Module:
    """He initialisation (ICCV 2015): the loss falls from the first step, where torch's smaller default has a plateau.

    A plateau is poison for a rule that waits for the loss to stop falling.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network


# --- loss and metrics ------------------------------------------------------------------------------------------------


def cross_entropy(model: nn.Module, batch: Examples) -> Tensor:
    """Mean cross-entropy of the model's logits, a scalar."""
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def metrics_on(load: Callable[[], Examples]) -> Callable[[nn.Module], dict[str, float]]:
    """A function of the model that gives `test_accuracy` (0 to 1) and `test_loss` on the examples of `load`."""

    def evaluate(model: nn.Module) -> dict[str, float]:
        inputs, labels = load()
        was_training = model.training
        model.eval()
        with torch.no_grad():
            logits = model(inputs)  # (n, n_classes)
        model.train(was_training)
        return {
            "test_accuracy": (logits.argmax(dim=1) == labels).float().mean().item(),
            "test_loss": functional.cross_entropy(logits, labels).item(),
        }

    return evaluate
