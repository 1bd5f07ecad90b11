"""Who makes a request, what that caller may do and take, and the record of it."""
