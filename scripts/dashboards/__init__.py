"""The Grafana dashboards as code; `python -m scripts.dashboards` writes helm/optimus/dashboards."""
