"""Jobs as `TrainingJob` objects of a Kubernetes cluster. REST and objects are views of the same jobs."""
