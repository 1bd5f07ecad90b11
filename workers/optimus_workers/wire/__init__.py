"""What travels between the tasks of one job.

frames       the 64-byte header in front of every tensor message (data connections)
codec        dataclasses to JSON lines and back, strictly checked
messages     the control messages, one dataclass each
values       what the messages are made of
secret       the challenge by which both ends of a connection prove that they know the job token
control      a task's end of the control connection
data         a task's end of a data connection
sockets      how data connections are set up, and how a cut cable is noticed
memory       float vectors that two processes may share
ranges       how the flat vector is cut among servers, the batch among workers
norms        the norm of a gradient that lies in pieces
compression  gradients in fewer bytes
"""
