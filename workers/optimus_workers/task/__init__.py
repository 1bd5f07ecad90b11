"""What a user brings and how a worker gets it: a training task and its parts, loaded by its import path.

definition        `TrainingTask`, `OptimizerSpec`: a model, its data and its update rule
parameter_groups  groups of parameters with a learning rate and a weight decay of their own
torch_optimizer   any optimizer of torch as the update rule
fine_tuning       starting from trained weights
user_code         loading the task; errors that the user's code raises
network           the layers of a network as plain data, for the service's forecast
"""

from optimus_workers.task.definition import Dataset, OptimizerKind, OptimizerSpec, TorchOptimizer, TrainingTask
from optimus_workers.task.fine_tuning import fine_tuned
from optimus_workers.task.parameter_groups import named_groups

__all__ = ["Dataset", "OptimizerKind", "OptimizerSpec", "TorchOptimizer", "TrainingTask", "fine_tuned", "named_groups"]
