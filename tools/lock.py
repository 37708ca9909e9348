"""Make a lock of versions from what pip says it would install: `make lock`.

Reads the report of ``pip install --dry-run --report`` and writes a line for each package, with
the SHA-256 of the file that pip chose. Where the file came from stays out of it.
"""

import json
import sys

HEAD = "# Written by `make lock`: the tested environment (Linux, x86-64, Python 3.11, CPU)."


def locked(report: dict) -> str:
    """The text of requirements.lock."""
    lines = {}
    for one in report["install"]:
        if "archive_info" not in one["download_info"]:  # mpvae itself
            continue
        name = one["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        version = one["metadata"]["version"].split("+")[0]  # without the name of a build
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        lines[name] = f"{name}=={version} \\\n    --hash=sha256:{digest}"
    return "\n".join([HEAD, *(lines[name] for name in sorted(lines))]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(locked(json.load(sys.stdin)))
