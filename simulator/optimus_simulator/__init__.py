"""A second shell round the scheduler: virtual time, hidden truth, and the same `plan` as the live service."""
