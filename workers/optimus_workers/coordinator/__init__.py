"""The one small process per job that owns the membership and the step barrier. It needs neither torch nor numpy.

events ─▶ transitions (pure: state, handlers by subject) ─▶ effects ─▶ shell (sockets, files, HTTP) ─▶ events
"""
