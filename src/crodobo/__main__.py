"""`python -m crodobo`."""

from crodobo.cli.main import main

if __name__ == "__main__":
    main()
