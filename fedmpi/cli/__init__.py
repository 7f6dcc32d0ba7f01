"""The command line: one file a command, its call and what it prints; arguments.py has what they accept."""
