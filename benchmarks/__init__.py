"""`python -m benchmarks` in a source tree is `pmwd-dist bench`; RESULTS.md holds its results.

What is timed and how is described in `pmwd_dist.bench`.
"""
