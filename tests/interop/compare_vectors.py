#!/usr/bin/env python3
"""Opens a directory saved by Maxim in PyLate or sentence-transformers and compares the token
vectors with those of Maxim's ./encode: same texts, same number of vectors a text, largest absolute
difference at most 2e-5 (fp32 sums in another order).

Not in CI: needs one of two virtual environments.
  python3 -m venv pylate && pylate/bin/pip install pylate==1.6.0
  python3 -m venv st6 && st6/bin/pip install sentence-transformers==6.2.0
Then, from the repository root, for a model that Maxim saved (./train … --output_dir DIR):
  pylate/bin/python tests/interop/compare_vectors.py DIR
  st6/bin/python tests/interop/compare_vectors.py DIR
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import load_file

BOUND = 2e-5
TEXTS = [
    "What is the capital of France?",
    "",
    "   spaces \t around   ",
    "the",
    "!!!",
    "Café naïve ÀÉÎÕÜ — “quotes”… 東京 日本 中国人 😀👍 привет",
    "[Q] a prefix typed in the text, [D] another, [MASK] and [unused0] too",
    "War and Peace (1869) - 1,225 pages; 3.5 kg!",
    "Plants make food from light, water and air; this is called photosynthesis! " * 40,
    "e\u0301 combining, zero\u200bwidth, \u00a0no-break, \u3000ideographic",
]
# transformers 5.3 finds a prefix in lower case too (the tokenizer lower-cases first), 5.24 does not,
# on PyLate's own checkpoints as well; Maxim follows PyLate.
PYLATE_TEXTS = ["[d] a prefix typed in lower case, [q] another"]


def maxim_vectors(encode, directory, texts, is_query):
    """One [tokens, width] array a text, as ./encode writes them."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "texts.jsonl")
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        output = pathlib.Path(folder, "vectors.safetensors")
        command = [encode, "--model_name_or_path", directory, "--input_file", str(file),
                   "--output_file", str(output)] + (["--is_query"] if is_query else [])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        tensors = load_file(output)
    offsets = tensors["offsets"]
    return [tensors["embeddings"][a:b] for a, b in zip(offsets[:-1], offsets[1:])]


def open_model(directory):
    """(name and version, function of texts and is_query, texts) of the library that is installed."""
    try:
        import pylate
        from pylate import models
    except ImportError:
        import sentence_transformers
        from sentence_transformers import MultiVectorEncoder

        model = MultiVectorEncoder(directory, device="cpu")

        def encode(texts, is_query):
            return (model.encode_query if is_query else model.encode_document)(texts)

        return f"sentence-transformers {sentence_transformers.__version__}", encode, TEXTS
    model = models.ColBERT(directory, device="cpu")

    def encode(texts, is_query):
        return model.encode(texts, is_query=is_query, convert_to_numpy=True)

    return f"PyLate {getattr(pylate, '__version__', '')}", encode, TEXTS + PYLATE_TEXTS


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("directory", help="a model saved by Maxim")
    parser.add_argument("--encode", default="./encode", help="Maxim's program")
    arguments = parser.parse_args()
    library, encode, texts = open_model(arguments.directory)
    worst = 0.0
    for is_query in (True, False):
        ours = maxim_vectors(arguments.encode, arguments.directory, texts, is_query)
        theirs = [numpy.asarray(v, dtype=numpy.float32) for v in encode(texts, is_query)]
        for text, a, b in zip(texts, ours, theirs):
            if a.shape != b.shape:
                sys.exit(f"FAILED: {text[:40]!r}: {a.shape} here, {b.shape} in {library}")
            worst = max(worst, float(numpy.abs(a - b).max()))
        kind = "queries" if is_query else "documents"
        print(f"{library}: {len(texts)} {kind}, {sum(len(v) for v in ours)} vectors of "
              f"{ours[0].shape[1]}, largest difference so far {worst:.2g}")
    if not worst <= BOUND:
        sys.exit(f"FAILED: {worst:.3g} is more than {BOUND}")


if __name__ == "__main__":
    main()
