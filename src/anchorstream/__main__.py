"""`python -m anchorstream` is the command `anchorstream`."""

from anchorstream.cli.main import main

if __name__ == "__main__":
    main()
