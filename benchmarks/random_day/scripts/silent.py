"""Prints nothing that tells how far it is."""

import argparse
import time

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=30.0)
time.sleep(parser.parse_args().seconds)
print("done")
