"""What limits and guarantees mean for a round, whatever the policy: GPU types, quotas, deadlines, budgets.

::

    jobs ─▶ gpu_types  each job on one type ─▶ forecast ─▶ type_market  each job on the type where it gains most
                                                             │
                                                           terms   floor (deadline) and ceiling (budget) of each job
                                                             │
    quotas ─▶ quotas   what each project is guaranteed ──────┴─▶ precedence ─▶ policy ─▶ grants

A policy never hears of any of this: it is given jobs with narrower limits, and less room.
"""
