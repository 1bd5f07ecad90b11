"""The database of the service: SQLite or PostgreSQL, with the same code and the same tests.

::

    api, loop ──▶ repository ──▶ jobs/ · samples/ · rounds/ · people · projects · nodes · leases
                   one method        statements by subject, each inside the caller's transaction
                   one transaction        │
                                          ▼
    records (values out and in)      database/: tables, dialects ──▶ engine ──▶ SQLite | PostgreSQL
    errors  (what may go wrong)

No other part of the service imports SQLAlchemy. The tables are made by the scripts in `migrations/`.
"""
