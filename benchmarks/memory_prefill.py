"""What prompts in one call take, by where activations lie: in the array, or beside it.

Both are measured in turns in one process: machines differ by more than the two do.
"""

import argparse
import pathlib
import statistics

from benchmarks import needs, results
from benchmarks.cases import Case, parse_cases
from benchmarks.decode import Bench, timed
from benchmarks.memory_steps import Row, layout_with_room
from fdjax import device
from fdjax.engine.programs import Programs
from fdjax.models.decoder import Decoder
from fdjax.serve.loading import STEPS_PER_LAUNCH, load_decoder
from fdjax.serve.setup import Settings, kind_of_platform


def prefill_times(
    model: Decoder, programs: Programs, case: Case, *, repeats: int
) -> list[Row]:
    """Prompts of a case in one call, in milliseconds, by where activations lie."""
    call = "extend", case.batch * case.context
    benches = {
        lent: Bench(
            model, programs, case, layout_with_room(model, case, call, lent=lent)
        )
        for lent in (True, False)
    }
    times: dict[bool, list[float]] = {lent: [] for lent in benches}
    for bench in benches.values():
        bench.prefill()
    for _ in range(repeats):  # in turns: clocks drift
        for lent, bench in benches.items():
            times[lent] += timed(bench.prefill, repeats=1)
    return [
        {
            "way": "lent" if lent else "apart",
            "batch": case.batch,
            "context": case.context,
            "prefill_ms": round(statistics.median(found) * 1e3, 2),
            "spread": round((max(found) - min(found)) / statistics.median(found), 4),
            **results.provenance(),
        }
        for lent, found in times.items()
    ]


def main() -> None:
    """Writes `memory_prefill.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--cases", default="8x1024,1x8192", help="of one call each")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args()
    device.claim_memory(0.93)
    needs.gpu_for(asked.model)
    cases = parse_cases(asked.cases, steps=1)
    longest = max(case.context for case in cases)
    settings = Settings.of(asked.model, max_model_len=longest, max_num_seqs=1)
    path = pathlib.Path(asked.model)
    model = load_decoder(settings, random_weights=path.suffix == ".json")
    programs = Programs(model, steps_per_launch=STEPS_PER_LAUNCH[kind_of_platform()])
    folder = results.RESULTS / results.device_slug()
    rows: list[Row] = []
    for case in cases:
        found = prefill_times(model, programs, case, repeats=asked.repeats)
        rows += [{"model": path.stem, **row} for row in found]
        print(*rows[-2:], sep="\n", flush=True)
        results.write(asked.out or folder / "memory_prefill.json", rows)


if __name__ == "__main__":
    main()
