"""Timing protocols against adversaries on one GPU: which protocol records a false number, and which detector sees it.

`python -m benchmarks.protocol_study` runs the study; docs/clock.md has the results. Two processes take part in each
cell: the judge owns the memory and the clock, the runner executes the adversary's code in a context of its own.
"""
