"""The largest numbers that messages may hold."""

MAX_TASKS = 1024
"""Workers (or servers) that one job may ask for."""
MAX_SAMPLES_PER_POST = 1000
MAX_BODY_BYTES = 1_048_576
MAX_BATCH_JOBS = 1000
"""Jobs of one request."""
MAX_BATCH_BODY_BYTES = 8_388_608
"""A thousand jobs of 8 KB each: a usual one has less than one."""
MAX_COUNT = 2**53
"""Largest step, byte count and the like: beyond it a JSON reader with doubles would round."""
MAX_POSIX_SECONDS = 1e11
"""Latest moment that is accepted, in the year 5138: within what dates can say."""
MAX_STEPS = 10**12
"""Of a job."""
MAX_TRACED_LOSS = 1e39
"""In a trace, without its sign: of a training that diverges it is what 32-bit floats can hold."""
MAX_SECONDS = 1e9
"""Of a job, or until its deadline: 32 years."""
MAX_SPEC_BYTES = 100_000
"""A job's specification as JSON: tasks get it in one environment variable, which Linux limits to 128 KiB."""
MAX_LOGS = 50
"""Tasks whose logs one answer holds: the newest. With the default tail that is 3 MB at most."""
MAX_METRICS = 20
"""Figures of one evaluation."""
MAX_RATE_POINTS = 256
"""Points of a planned schedule of learning rates."""
DEFAULT_RETRIES = 2
MAX_RETRIES = 20
"""Times that a job goes on after an error of its own."""
LEAST_PRIORITY, MOST_PRIORITY = 0.01, 1000.0
"""Five orders of magnitude: below the least, a job would hardly ever keep what it gets."""
LEAST_EPOCHS = 1e-9
"""A step of one example among a thousand million."""
LEAST_SECONDS = 0.001
LEAST_HANG_SECONDS = 0.1
"""A micro-batch that takes longer is nothing odd."""
LEAST_CORES = 0.001
"""A thousandth is what clusters count in."""
LEAST_PART = 1e-9
"""Of a loss, of money, of a norm: below it a number is a slip."""
