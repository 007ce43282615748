"""Chaos: real replicas of `loquent` that share a real Redis, faults drawn from a seed, and laws for what readers saw.

`python -m chaos --help` says how it is run; docs/chaos.md has the faults, the history and the laws.
"""
