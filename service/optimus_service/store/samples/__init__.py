"""Telemetry: which samples count, how they are stored, and what is kept of them by job."""
