"""``python -m hpcrl`` is ``hpcrl``."""

from hpcrl.cli import main

if __name__ == "__main__":
    main()
