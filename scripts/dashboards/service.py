"""API, database, telemetry and processes."""

from __future__ import annotations

from scripts.dashboards.model import RATE, Dashboard, lines, quantile, stat

LONG = 'route!~"/v1/stream|.*membership"'
"""Calls that last as long as they may are left out of latencies."""

SERVICE = Dashboard(
    "optimus-service",
    "Optimus / Service",
    "API, database, telemetry and processes.",
    (
        (
            "Now",
            (
                stat("Replicas", "count(optimus_build_info)"),
                stat("Database", "min(optimus_database_up)", thresholds=(("red", 0), ("green", 1))),
                stat(
                    "Loop", "min(optimus_loop_healthy)", about="0: see /readyz.", thresholds=(("red", 0), ("green", 1))
                ),
                stat("Pages that watch", "sum(optimus_streams)"),
                stat("Coordinators that wait", "sum(optimus_long_polls)"),
                stat(
                    "Errors",
                    f'(sum(rate(optimus_api_request_seconds_count{{status=~"5.."}}{RATE})) or vector(0))'
                    f" / sum(rate(optimus_api_request_seconds_count{RATE}))",
                    "percentunit",
                    "Part of requests answered 5xx.",
                    thresholds=(("green", 0), ("orange", 0.01), ("red", 0.05)),
                ),
            ),
        ),
        (
            "API",
            (
                lines(
                    "Requests by route",
                    (f"sum by (route) (rate(optimus_api_request_seconds_count{RATE}))", "{{route}}"),
                    unit="reqps",
                    stacked=True,
                ),
                lines(
                    "Requests by status",
                    (f"sum by (status) (rate(optimus_api_request_seconds_count{RATE}))", "{{status}}"),
                    unit="reqps",
                ),
                lines(
                    "Latency, 99 % by route",
                    (quantile(0.99, "optimus_api_request_seconds", "route", where=f"{{{LONG}}}"), "{{route}}"),
                    unit="s",
                    about="Long polls and event streams are left out: they last as long as they may.",
                ),
                lines(
                    "Being answered",
                    ("sum(optimus_api_requests_in_progress)", "requests"),
                    ("sum(optimus_long_polls)", "long polls"),
                    ("sum(optimus_streams)", "streams"),
                ),
            ),
        ),
        (
            "Database",
            (
                lines(
                    "Time of transactions",
                    (quantile(0.5, "optimus_database_transaction_seconds", "kind"), "{{kind}}, median"),
                    (quantile(0.99, "optimus_database_transaction_seconds", "kind"), "{{kind}}, 99 %"),
                    unit="s",
                ),
                lines(
                    "Transactions",
                    (f"sum by (kind) (rate(optimus_database_transaction_seconds_count{RATE}))", "{{kind}}"),
                    (f"sum(rate(optimus_database_errors_total{RATE})) or vector(0)", "failed"),
                    unit="ops",
                ),
            ),
        ),
        (
            "Telemetry",
            (
                lines(
                    "Samples by outcome",
                    (f"sum by (outcome) (rate(optimus_samples_total{RATE}))", "{{outcome}}"),
                    unit="ops",
                ),
                lines(
                    "How late samples come",
                    (quantile(0.5, "optimus_sample_lag_seconds"), "median"),
                    (quantile(0.95, "optimus_sample_lag_seconds"), "95 %"),
                    unit="s",
                ),
            ),
        ),
        (
            "Processes",
            (
                lines(
                    "CPU",
                    (
                        f"rate(process_cpu_seconds_total{RATE}) and on (instance) optimus_build_info",
                        "{{instance}}",
                    ),
                ),
                lines(
                    "Memory",
                    ("process_resident_memory_bytes and on (instance) optimus_build_info", "{{instance}}"),
                    unit="bytes",
                ),
                lines("Who leads", ("optimus_leader", "{{instance}}")),
            ),
        ),
    ),
)
