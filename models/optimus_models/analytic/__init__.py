"""Speed before the first step has run: from a layer description, a device and a network, by arithmetic alone.

After Qi, Sparks, Talwalkar: "Paleo: A Performance Model for Deep Neural Networks", ICLR 2017. Measurements replace it
as soon as there are any.
"""

from optimus_models.analytic.cost import LayerCost, NetworkCost, count
from optimus_models.analytic.layers import Layer, Network, Shape
from optimus_models.analytic.step_time import CPU_CORE, DEVICES, ColdStart, Device, Scheme, exchange_seconds

__all__ = [
    "CPU_CORE",
    "DEVICES",
    "ColdStart",
    "Device",
    "Layer",
    "LayerCost",
    "Network",
    "NetworkCost",
    "Scheme",
    "Shape",
    "count",
    "exchange_seconds",
]
