"""The database of the service: SQLite or PostgreSQL, with the same code and the same tests.

::

    api, loop ──▶ repository ──▶ jobs · wanted · memberships · samples · tasks · history · leases · retention
                   one method        statements by subject, each inside the caller's transaction
                   one transaction        │
                                          ▼
    records   (values out and in)    tables, dialects ──▶ engine ──▶ SQLite | PostgreSQL
    forecasts (forecast ↔ JSON)      counting (which samples count: pure), sample_documents (samples ↔ bytes)
    sample_queue (posts of many      errors    (what may go wrong)
      callers in few transactions)

No other part of the service imports SQLAlchemy. The tables are made by the scripts in `migrations/`.
"""
