"""`python -m unmask` is the command `unmask`."""

from unmask.cli.main import main

if __name__ == "__main__":
    main()
