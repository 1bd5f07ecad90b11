"""Protocols of stock libraries by which a training reports its steps and losses, and how they are read. Pure."""
