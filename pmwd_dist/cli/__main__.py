"""`python -m pmwd_dist.cli` is `pmwd-dist`."""

from pmwd_dist_program import main

main()
