"""A cluster made of processes on this machine: the default, needs nothing else."""

from optimus_service.clusters.local.cluster import LocalCluster, LocalClusterOptions

__all__ = ["LocalCluster", "LocalClusterOptions"]
