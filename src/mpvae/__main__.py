"""``python -m mpvae``, the command line."""

from mpvae.cli import main

if __name__ == "__main__":
    main()
