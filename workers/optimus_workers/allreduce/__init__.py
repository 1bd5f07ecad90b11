"""The all-reduce architecture: workers that hold all parameters and average their gradients among themselves (DDP)."""
