#!/usr/bin/env python3
"""Maxim against PyLate and sentence-transformers: triplets a second and peak memory, one alternating run.

    make && make build/minilm
    python3 -m venv A && A/bin/pip install pylate==1.6.0
    python3 -m venv B && B/bin/pip install 'sentence-transformers[train]==6.2.0'
    python3 bench/compare/compare.py --pylate A/bin/python --sentence_transformers B/bin/python \\
        --rows build/demo/text/train.tsv --document_length 48 --batch 32

Every side trains the same rows (query, positive, negative), once over, from the same checkpoint, in
fp32 with AdamW, clipping and dropout, on all cores of this machine, each in a fresh process; the
sides take turns, --rounds times. Counted are the steps after the first --warmup. Maxim runs as
--ranks ranks that share the batch; its memory is the sum over the ranks, which counts pages that
they share twice. A loss far from the others' is an error: a fast wrong step is no result.

Reported are medians over the rounds, the spread (largest over smallest, in %), and the ratios. Other
work on the machine spoils the figures: the load average is printed with them, and warned about.
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run(command, environment=None):
    """Standard output of a command; its standard error where it fails."""
    result = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, cwd=ROOT,
        env=os.environ | (environment or {}))
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {result.returncode}\n{result.stderr[-3000:]}")
    return result.stdout


def train_maxim(options, checkpoint, rows, scratch):
    output_dir = scratch / "maxim"
    command = ["./train", "--model_name_or_path", checkpoint, "--train_file", rows,
               "--output_dir", output_dir, "--overwrite_output_dir", "--num_train_epochs", 1,
               "--per_device_train_batch_size", options.batch // options.ranks,
               "--learning_rate", 1e-4, "--logging_steps", 1, "--save_steps", 0]
    if options.ranks > 1:
        command = ["mpirun", "--oversubscribe", "-np", options.ranks, *command]
    run(command, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    records = [json.loads(line) for line in open(output_dir / "metrics.jsonl", encoding="utf-8")]
    steps = [record for record in records if record["type"] == "step"]
    return {"step_seconds": [step["rows"] / step["rows_per_second"] for step in steps],
            "peak_memory_bytes": records[-1]["peak_memory_bytes"],
            "loss": statistics.mean(step["loss"] for step in steps),
            "tokens": sum(step["tokens"] for step in steps)}


def train_reference(library, python, options, checkpoint, rows):
    output = run([python, HERE / "reference.py", library, checkpoint, rows, options.batch])
    return json.loads(output.splitlines()[-1])


def chosen_rows(options, scratch):
    """`steps * batch` rows by chance, the same for every side; their file."""
    with open(options.rows, encoding="utf-8", newline="\n") as file:
        lines = [line for line in file if line.count("\t") == 2]
    count = options.steps * options.batch
    if len(lines) < count:
        sys.exit(f"{options.rows}: {count} rows of query, positive and negative wanted, {len(lines)} found")
    rows = scratch / "rows.tsv"
    rows.write_text("".join(random.Random(options.seed).sample(lines, count)), encoding="utf-8")
    return rows


def summary(runs, options):
    speeds = [options.batch * (len(run["step_seconds"]) - options.warmup)
              / sum(run["step_seconds"][options.warmup:]) for run in runs]
    return {"rows_per_second": statistics.median(speeds),
            "spread_percent": 100 * (max(speeds) / min(speeds) - 1),
            "peak_memory_bytes": statistics.median(run["peak_memory_bytes"] for run in runs),
            "loss": statistics.median(run["loss"] for run in runs)}


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pylate", required=True, metavar="PYTHON", help="of a venv with PyLate")
    parser.add_argument("--sentence_transformers", metavar="PYTHON", help="of a venv with version 6")
    parser.add_argument("--model", default="build/minilm")
    parser.add_argument("--rows", required=True, type=os.path.abspath, help="TSV of triplets")
    parser.add_argument("--query_length", type=int, default=32)
    parser.add_argument("--document_length", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="rows of all ranks together")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warmup", type=int, default=5, help="steps left out of the timing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--loss_tolerance", type=float, default=0.1,
                        help="relative, of the mean loss over all steps against PyLate's")
    parser.add_argument("--json", type=os.path.abspath, help="file to append the result to, one line")
    options = parser.parse_args()
    if options.batch % options.ranks or not 0 <= options.warmup < options.steps:
        parser.error("--batch has to be a multiple of --ranks, --warmup less than --steps")
    return options


def main():
    options = parse()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: load average {load:.1f}: other work spoils the figures", file=sys.stderr)
    with tempfile.TemporaryDirectory() as directory:
        scratch = pathlib.Path(directory)
        rows, checkpoint = chosen_rows(options, scratch), scratch / "checkpoint"
        run([options.pylate, HERE / "reference.py", "prepare", options.model, checkpoint,
             options.query_length, options.document_length])
        sides = {"Maxim": lambda: train_maxim(options, checkpoint, rows, scratch),
                 "PyLate": lambda: train_reference(
                     "pylate", options.pylate, options, checkpoint, rows)}
        if options.sentence_transformers:
            sides["sentence-transformers"] = lambda: train_reference(
                "sentence-transformers", options.sentence_transformers, options, checkpoint, rows)
        runs = {name: [] for name in sides}
        for turn in range(options.rounds):
            for name, train in sides.items():
                runs[name].append(train())
                figures = summary(runs[name][-1:], options)
                print(f"round {turn + 1}: {name} {figures['rows_per_second']:.2f} triplets/s, "
                      f"loss {figures['loss']:.4f}", file=sys.stderr)

    results = {name: summary(side, options) for name, side in runs.items()}
    maxim = results["Maxim"]
    tokens = runs["Maxim"][0]["tokens"] / (options.steps * options.batch)
    print(f"{pathlib.Path(options.rows).name}: {tokens:.0f} tokens a triplet, lengths "
          f"{options.query_length}/{options.document_length}, batch {options.batch}, "
          f"{os.cpu_count()} cores, Maxim with {options.ranks} ranks; {options.rounds} rounds of "
          f"{options.steps - options.warmup} steps, load average {load:.1f} before")
    print(f"{'':24}{'triplets/s':>11}{'spread':>8}{'Maxim is':>10}{'memory':>10}{'Maxim has':>11}{'loss':>8}")
    wrong = False
    for name, side in results.items():
        wrong_loss = abs(side["loss"] / results["PyLate"]["loss"] - 1) > options.loss_tolerance
        wrong |= wrong_loss
        print(f"{name:24}{side['rows_per_second']:11.1f}{side['spread_percent']:7.0f}%"
              f"{maxim['rows_per_second'] / side['rows_per_second']:9.2f}x"
              f"{side['peak_memory_bytes'] / 2**30:6.2f} GiB"
              f"{maxim['peak_memory_bytes'] / side['peak_memory_bytes']:10.2f}x{side['loss']:8.4f}"
              + ("  WRONG LOSS" if wrong_loss else ""))
    if options.json:
        line = {"date": datetime.date.today().isoformat(), "rows": pathlib.Path(options.rows).name,
                "tokens_per_row": tokens, "load_before": load, "results": results}
        line |= {name: getattr(options, name) for name in
                 ("query_length", "document_length", "batch", "ranks", "steps", "warmup", "rounds")}
        with open(options.json, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    sys.exit(1 if wrong else 0)


main()
