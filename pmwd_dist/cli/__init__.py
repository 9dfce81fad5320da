"""The command line, `pmwd-dist`: exit code 0; 2 for a wrong command or config; 1 for a run that failed."""

from pmwd_dist.cli.main import main as main
