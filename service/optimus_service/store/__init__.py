"""The database of the service: SQLite or PostgreSQL, with the same code and the same tests.

::

    api, loop ──▶ repository ──▶ jobs/ · samples/ · events · people · projects · nodes · leases
                   one attribute     each call is one transaction,
                   per subject       or part of the caller's (`with repository.write() as tx`)
                                          │
                                          ▼
    records (values out and in)      database/: tables, dialects ──▶ engine ──▶ SQLite | PostgreSQL
    errors  (what may go wrong)

No other part of the service imports SQLAlchemy. The tables are made by the scripts in `migrations/`.
"""
