"""`python -m disagmoe` is the same as `disagmoe`."""

from disagmoe.cli.main import main

if __name__ == "__main__":
    main()
