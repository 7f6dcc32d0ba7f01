"""The command line: `fedmpi COMMAND ...`, also as `python -m fedmpi COMMAND ...`."""

from fedmpi.cli.dispatch import main

if __name__ == "__main__":
    main()
