"""A cluster of pods on Kubernetes. Settings are apart from the rest, whose client library is slow to import."""
