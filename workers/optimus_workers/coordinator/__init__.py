"""The one small process per job that owns membership and the step gate. Needs neither torch nor numpy.

events ─▶ machine (pure: facts, phases, gate, saving) ─▶ instructions ─▶ shell (sockets, files, HTTP) ─▶ events
"""
