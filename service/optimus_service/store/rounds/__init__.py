"""What rounds decided and what happened: events, decisions with their forecasts, expected times."""
