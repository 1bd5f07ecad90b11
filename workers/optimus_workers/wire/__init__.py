"""What travels between the tasks of one job.

frames     the 64-byte header in front of every tensor message (data connections)
codec      dataclasses to JSON lines and back, strictly checked
messages   the control messages, one dataclass each
values     what the messages are made of
secret     the challenge by which both ends of a connection prove that they know the job token
control    a task's end of the control connection
data       a task's end of a data connection
"""
