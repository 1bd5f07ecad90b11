"""HTTP itself: reading requests, errors as problem documents, examples, the access log, the built pages."""
