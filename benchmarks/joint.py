"""What the joint distribution is good for, on real data.

    python benchmarks/joint.py                       everything; resumes where it stopped
    python benchmarks/joint.py sets speed            some sections
    python benchmarks/joint.py --page                docs/joint-results.md from the results

Sections: oracles (against SciPy's normal cdf), conditional (labels given others, against rivals
that see them too), missing (training labels removed), decisions (best answers for example-F1),
sets (conformal coverage), speed.
Data sets are the .npz files in $MPVAE_DATA or ../shared/data; yeast falls back to river's.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from harness import joint, joint_page, runner

SECTIONS = ("oracles", "sets", "missing", "conditional", "decisions", "speed")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "joint"
PAGE = ROOT / "docs" / "joint-results.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION")
    parser.add_argument("--seeds", type=int, default=len(joint.SEEDS), help="how many (3)")
    parser.add_argument("--workers", type=int, default=2, help="cells at a time (2)")
    parser.add_argument("--retry", action="store_true", help="run cells that failed again")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the cells")
    args = parser.parse_args()
    sections = tuple(args.sections) or SECTIONS
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]}; known: {', '.join(SECTIONS)}")
    seeds = tuple(range(args.seeds))
    if args.page:
        PAGE.write_text(joint_page.page(args.results, SECTIONS, joint.SEEDS))
        print(f"wrote {PAGE.relative_to(ROOT)}")
        return
    # Timed alone: everything else first, then the clock.
    others = [name for name in sections if name != "speed"]
    try:
        for names, workers in ((others, args.workers), (["speed"], 1)):
            wanted = joint.cells([name for name in names if name in sections], seeds)
            runner.run_all(
                wanted, args.results, workers=workers, retry=args.retry, run=joint.run
            )
    except KeyboardInterrupt:
        sys.exit("stopped; what is done is kept, and the same command goes on from there")
    Console().print(Markdown(joint_page.page(args.results, sections, seeds)))


if __name__ == "__main__":
    main()
