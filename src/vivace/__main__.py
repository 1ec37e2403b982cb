"""`python -m vivace`: the same as the program `vivace`."""

from vivace.cli.main import main

if __name__ == "__main__":
    main()
