"""One job explained in full (`optimus explain`), and its place in the queue."""
