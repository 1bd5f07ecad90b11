"""Live demos of predicted starts and ends, with a picture of each: `python -m benchmarks.prediction_demos`."""
