"""Clusters as they are: made-up worlds that every policy is run on."""
