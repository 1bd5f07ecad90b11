"""The database itself: engine, tables, dialects, sealed columns, pages, values kept of rows."""
