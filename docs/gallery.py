"""Writes docs/gallery: each example with its code, what it printed and its figures.

python docs/gallery.py [NAME ...]     # all of them, on the real data: some minutes
"""

import ast
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
NAMES = ("bird_survey", "gene_functions", "tags_of_texts", "drug_side_effects")


def write(name: str) -> None:
    """Run an example and write its page."""
    script = EXAMPLES / f"{name}.py"
    folder = HERE / "gallery"
    images = folder / name
    done = subprocess.run(
        [sys.executable, script, "--figures", images],
        capture_output=True,
        text=True,
        check=True,
    )
    code = script.read_text(encoding="utf-8")
    words = ast.get_docstring(ast.parse(code))
    assert words is not None
    title, _, rest = words.partition("\n")
    shown = code[code.index('"""\n', 3) + 4 :].strip()
    figures = "\n\n".join(
        f"![{image.stem}]({name}/{image.name})" for image in sorted(images.glob("*.png"))
    )
    parts = [
        f"# {title.rstrip('.')}",
        rest.strip(),
        f"`examples/{name}.py`:",
        f"```py\n{shown}\n```",
        "It prints:",
        f"```text\n{done.stdout.strip()}\n```",
        figures,
    ]
    (folder / f"{name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"{name}: {len(done.stdout.splitlines())} lines")


def main() -> None:
    (HERE / "gallery").mkdir(exist_ok=True)
    for name in sys.argv[1:] or NAMES:
        write(name)
    lines = [
        "# Gallery",
        "",
        "Real data, one script each (`examples/`); run by `make gallery`.",
        "",
    ]
    for name in NAMES:
        page = HERE / "gallery" / f"{name}.md"
        if page.exists():
            title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
            lines.append(f"- [{title}]({name}.md)")
    (HERE / "gallery" / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
