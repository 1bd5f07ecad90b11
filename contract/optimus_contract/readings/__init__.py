"""How a training tells its steps and losses by the protocols of stock libraries, and what these tell of it. Pure."""
