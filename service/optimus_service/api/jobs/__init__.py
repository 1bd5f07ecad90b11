"""Jobs as their owners see them: submit, plan, look at, explain, change, cancel."""
