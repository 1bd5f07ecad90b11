"""Checkpoints: one safetensors file per server (`shards`), one manifest that makes them a whole (`manifest`)."""
