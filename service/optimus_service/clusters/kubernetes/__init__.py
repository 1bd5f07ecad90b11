"""A cluster of pods on Kubernetes."""

from optimus_service.clusters.kubernetes.cluster import KubernetesCluster
from optimus_service.clusters.kubernetes.settings import KubernetesSettings

__all__ = ["KubernetesCluster", "KubernetesSettings"]
