"""Study of timing protocols against adversaries on one GPU: false numbers of each protocol, and detectors of them.

`python -m benchmarks.protocol_study` runs the study; docs/clock.md has the results. Each cell has two processes: the
judge owns the memory and the clock, the runner executes the adversary's code in its own context.
"""
