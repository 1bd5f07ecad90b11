"""The cluster over time: who had how much of it, and what happened as a trace for the simulator."""
