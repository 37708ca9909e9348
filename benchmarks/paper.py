"""The paper's tables and figures: see ``python benchmarks/paper.py --help``."""

if (
    __name__ == "__main__"
):  # cells run in processes that import this file, and need nothing of it
    from harness.cli import main

    main()
