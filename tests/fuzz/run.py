"""``make fuzz``: each target for some time, from its corpus on. What fails is left under build/fuzz."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.harness import fuzz
from fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(one.name for one in TARGETS)}; all where none is named")
    parser.add_argument("--seconds", type=float, default=300, help="for each")
    parser.add_argument("--seed", type=int, help="of what is drawn; the time where none is given")
    asked = parser.parse_args()
    seed = int(time.time()) if asked.seed is None else asked.seed
    for target in TARGETS:
        if not asked.names or target.name in asked.names:
            report = fuzz(target, Path("build/fuzz"), seconds=asked.seconds, seed=seed)
            print(f"{target.number} {target.name}: {report.num_tried:,} inputs, {len(report.outcomes)} outcomes, seed {seed}")


if __name__ == "__main__":
    main()
