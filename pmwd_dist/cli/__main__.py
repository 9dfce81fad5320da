"""`python -m pmwd_dist.cli` is `pmwd-dist`."""

from pmwd_dist.cli import main

main()
