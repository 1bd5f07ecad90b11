"""What no scheduler can do better than, on a trace and its cluster. Proofs: docs/bounds.md."""
