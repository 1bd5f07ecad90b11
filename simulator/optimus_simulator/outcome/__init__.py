"""What came of a simulation: records, policies side by side, and the report."""
