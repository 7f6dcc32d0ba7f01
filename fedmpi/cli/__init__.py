"""The command line: one file per command, its call and what it prints; arguments.py has the arguments."""
