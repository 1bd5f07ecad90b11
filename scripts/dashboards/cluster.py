"""Who has what, who waits and why."""

from __future__ import annotations

from scripts.dashboards.model import Dashboard, Panel, Query, lines, stat

USED_SHARE = 'sum(optimus_cluster_cpu_cores{of="used"}) / sum(optimus_cluster_cpu_cores{of="capacity"})'
CLUSTER = Dashboard(
    "optimus-cluster",
    "Optimus / Cluster",
    "Who has what, who waits and why.",
    (
        (
            "Now",
            (
                stat("Jobs that train", 'sum(optimus_jobs{state="running"})'),
                stat("Jobs that wait", "sum(optimus_waiting_jobs)", thresholds=(("green", 0), ("orange", 1))),
                stat("CPU in use", USED_SHARE, "percentunit"),
                stat("Nodes", "sum(optimus_nodes)"),
                stat("Costs per hour", "sum(optimus_job_cost_per_hour)", "short", "In the currency of the prices."),
                stat(
                    "Longest wait for what is wanted",
                    "max(optimus_reconcile_lag_seconds)",
                    "s",
                    thresholds=(("green", 0), ("orange", 60), ("red", 300)),
                ),
            ),
        ),
        (
            "Who has what",
            (
                lines(
                    "Dominant share by job",
                    ("sum by (job) (optimus_job_share_ratio)", "{{job}}"),
                    unit="percentunit",
                    about="The largest part that each job takes of any one resource.",
                    stacked=True,
                    width=24,
                    height=10,
                ),
                lines("Workers by job", ("sum by (job) (optimus_job_workers)", "{{job}}"), stacked=True),
                lines("Servers by job", ("sum by (job) (optimus_job_servers)", "{{job}}"), stacked=True),
                lines(
                    "Share by project",
                    (
                        "sum by (project) (optimus_job_share_ratio"
                        " * on (job_id) group_left (project) optimus_job_info)",
                        "{{project}}",
                    ),
                    unit="percentunit",
                    stacked=True,
                ),
                lines(
                    "Cost per hour by job",
                    ("sum by (job) (optimus_job_cost_per_hour)", "{{job}}"),
                    about="In the currency of the prices; empty without prices.",
                    stacked=True,
                ),
            ),
        ),
        (
            "Who waits and why",
            (
                lines(
                    "Jobs that wait, by reason", ("sum by (reason) (optimus_waiting_jobs)", "{{reason}}"), stacked=True
                ),
                lines("Jobs by state", ("sum by (state) (optimus_jobs)", "{{state}}")),
            ),
        ),
        (
            "Utilisation",
            (
                lines("CPU cores", ("sum by (of) (optimus_cluster_cpu_cores)", "{{of}}")),
                lines("Memory", ("sum by (of) (optimus_cluster_memory_bytes)", "{{of}}"), unit="bytes"),
                lines("GPUs", ("sum by (of, gpu_type) (optimus_cluster_gpus)", "{{gpu_type}} {{of}}")),
                lines("Nodes by state", ("sum by (state) (optimus_nodes)", "{{state}}")),
            ),
        ),
        (
            "Jobs",
            (
                Panel(
                    "Time left",
                    (Query('sort_desc(optimus_job_predicted_remaining_seconds{bound="mean"})', "{{job}}"),),
                    "s",
                    "bargauge",
                ),
                Panel(
                    "Progress", (Query("sort_desc(optimus_job_progress_ratio)", "{{job}}"),), "percentunit", "bargauge"
                ),
            ),
        ),
    ),
)
