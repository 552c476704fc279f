#!/usr/bin/env python3
"""Compares Maxim's token ids with those of Hugging Face's `tokenizers`. Not part of CI.

    pip install tokenizers==0.22.2 numpy
    python3 tests/interop/tokenizer_compare.py [--lines 20000] [--seed 1] [FILE...]

Run from the repository root. For each configuration (casing, accents, added tokens with every
flag, ...) it writes a tokenizer.json with `tokenizers`, encodes generated nasty texts and the lines
of the files with both, with and without a limit, then has Maxim add tokens, save, load and save
again, and compares the bytes of the two copies and the ids that `tokenizers` gets from them.

--code-points: instead, every code point under all 16 normalisers, about 10 minutes.
--golden FILE: only write the cases of tests/golden/tokenizer_added_tokens.json.
"""

from glob import glob
import argparse, itertools, json, os, random, subprocess, sys, tempfile
import numpy as np
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

VOCABULARY = "tests/golden/minilm_vocab.txt"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
POOLS = [
    "abcdefghijklmnopqrstuvwxyz",
    "ABC XYZ,.!?;:'\"()-",
    "éÀñüßøÅÉçŁđİıſ",
    "中文日本語カな 한국어각",
    "\u0301\u0308\u0327\u0323\u0344\u0f73\u0f71",
    "\u200b\u00ad \t\n\r\x0b\x0c\x85\x00\x01\x7f\ufffd\u2028\u00a0\u3000",
    "😀👍🏽❤️☃\U0001d15e\U0001d165\U0001d16d\u302e\u302f\u1b44\u08d4",
    "0123456789.-/",
    "абвЙЁ ΑΒΓσςΣ",
    "हिन्दी ไทย العربية עברית",
    "\ud7a3\uac00\u1100\u1161\u11a8\u3099",
    "\ufb01Ǆⅷ㍿豈\U0002f800",
]
PHRASES = [
    "[MASK]",
    "[Q] ",
    "[q] ",
    "[Q]",
    "[D] ",
    "[unused0]",
    "[CLS]",
    "[SEP]",
    "[mask]",
    "[MASK",
    "##ing",
    "<ent>",
    "<ENT>",
    "new york",
    "New  York",
    "foo",
    "Foo",
    "foofoo",
    " bar",
    "bar ",
    "straße",
    "STRASSE",
    "a\u0301b",
    "áb",
    "x" * 99,
    "y" * 101,
    "é" * 100,
    " ",
    "  ",
    "\n",
    "the",
    "running",
]


def extra_tokens(rng):
    """Added tokens with random flags, some of which overlap."""
    contents = [
        "[Q] ",
        "[D] ",
        "<ent>",
        "new york",
        "foo",
        "foofoo",
        " bar",
        "bar ",
        "Straße",
        "áb",
        "[unused0]",
        "中",
        "!!",
        "e",
        "\u3000x",
        "[MASK]x",
    ]
    flag = lambda: rng.random() < 0.4
    return [
        AddedToken(
            c, single_word=flag(), lstrip=flag(), rstrip=flag(), normalized=flag(), special=flag()
        )
        for c in rng.sample(contents, rng.randint(1, 6))
    ]


def build(words, options, tokens, max_chars=100, prefix="##"):
    t = Tokenizer(
        WordPiece(
            words,
            unk_token="[UNK]",
            max_input_chars_per_word=max_chars,
            continuing_subword_prefix=prefix,
        )
    )
    t.normalizer = normalizers.BertNormalizer(**options)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.add_tokens(tokens)
    return t


def nasty(rng):
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.30:
            parts.append(rng.choice(PHRASES))
        elif kind < 0.34:
            parts.append(
                "".join(
                    chr(
                        rng.choice(
                            [
                                rng.randint(1, 0x24F),
                                rng.randint(0x250, 0xD7FF),
                                rng.randint(0xE000, 0xFFFF),
                                rng.randint(0x10000, 0x10FFFF),
                            ]
                        )
                    )
                    for _ in range(rng.randint(1, 6))
                )
            )
        elif kind < 0.36:
            parts.append(rng.choice(POOLS[0]) * rng.choice([50, 99, 100, 101, 500, 3000]))
        else:
            parts.append("".join(rng.choice(rng.choice(POOLS)) for _ in range(rng.randint(1, 8))))
    text = rng.choice(["", " "]).join(parts)
    return text * rng.randint(20, 60) if rng.random() < 0.01 else text


def maxim_ids(program, directory, texts, limit=-1, save="-", tokens=()):
    data = b"".join(
        b"%d\n" % len(b) + b for b in (t if isinstance(t, bytes) else t.encode() for t in texts)
    )
    run = subprocess.run(
        [program, directory, str(limit), save, *tokens], input=data, capture_output=True
    )
    if run.returncode != 0:
        sys.exit(f"{directory}: {run.stderr.decode()}")
    numbers, ids, i = np.frombuffer(run.stdout, np.int32), [], 0
    while i < len(numbers):
        ids.append((bool(numbers[i]), numbers[i + 2 : i + 2 + numbers[i + 1]].tolist()))
        i += 2 + numbers[i + 1]
    assert len(ids) == len(texts), (len(ids), len(texts))
    return ids


def compare(name, texts, expected, found, limit=-1):
    wrong = 0
    for text, want, (cut, got) in zip(texts, expected, found):
        right = (
            (got == want and not cut)
            if limit < 0
            else (got == want[:limit] and cut == (len(want) > limit))
        )
        if not right:
            wrong += 1
            if wrong <= 3:
                print(
                    f"  {name} limit {limit}: {text[:200]!r}\n    wanted {want[:40]}\n"
                    f"    got    {got[:40]} cut {cut}"
                )
    return wrong


def directory_for(tokenizer, parent, name, options):
    path = os.path.join(parent, name)
    os.makedirs(path)
    tokenizer.save(os.path.join(path, "tokenizer.json"))
    config = {
        "do_lower_case": options["lowercase"],
        "strip_accents": options["strip_accents"],
        "tokenize_chinese_chars": options["handle_chinese_chars"],
    }
    json.dump(config, open(os.path.join(path, "tokenizer_config.json"), "w"))
    return path


def normalizer_options():
    for lower, strip, chinese, clean in itertools.product(
        [True, False], [None, True, False], [True, False], [True, False]
    ):
        yield dict(
            clean_text=clean, handle_chinese_chars=chinese, strip_accents=strip, lowercase=lower
        )


def compare_texts(program, args, scratch):
    words = {line.rstrip("\n"): i for i, line in enumerate(open(VOCABULARY, encoding="utf-8"))}
    special = [AddedToken(t, special=True, normalized=False) for t in SPECIAL]
    real = [line for f in args.files for line in open(f, encoding="utf-8", errors="replace")]
    rng, total, wrong = random.Random(args.seed), 0, 0
    for number, options in enumerate(normalizer_options()):
        for variant in ("plain", "prefixes", "flags"):
            tokens = {
                "plain": special,
                "prefixes": special + [AddedToken("[Q] "), AddedToken("[D] ")],
                "flags": special + extra_tokens(rng),
            }[variant]
            hf = build(
                words,
                options,
                tokens,
                *(
                    rng.choice([(50, "##"), (100, ""), (3, "##")])
                    if variant == "flags" and rng.random() < 0.3
                    else ()
                ),
            )
            name = f"{number}-{variant}"
            path = directory_for(hf, scratch, name, options)
            texts = [nasty(rng) for _ in range(args.lines // 24 + 1)] + (
                real if variant == "prefixes" and number < 2 else []
            )
            expected = [e.ids for e in hf.encode_batch(texts, add_special_tokens=False)]
            bad = compare(name, texts, expected, maxim_ids(program, path, texts))
            for limit in (0, 1, rng.randint(2, 40)):
                bad += compare(name, texts, expected, maxim_ids(program, path, texts, limit), limit)
            first, second = path + "-saved", path + "-again"
            os.makedirs(first), os.makedirs(second)
            found = maxim_ids(program, path, texts, -1, first, ["[Q] ", "[E] "])
            bad += compare(
                name + " saved",
                texts,
                [
                    e.ids
                    for e in Tokenizer.from_file(first + "/tokenizer.json").encode_batch(
                        texts, add_special_tokens=False
                    )
                ],
                found,
            )
            bad += compare(
                name + " again",
                texts,
                [i for _, i in found],
                maxim_ids(program, first, texts, -1, second),
            )
            for file in ("tokenizer.json", "tokenizer_config.json"):
                if open(f"{first}/{file}", "rb").read() != open(f"{second}/{file}", "rb").read():
                    print(f"  {name}: {file} differs after the second save")
                    bad += 1
            total, wrong = total + len(texts), wrong + bad
            print(f"{name} {options}: {len(texts)} texts, {bad} wrong", flush=True)
    print(f"{total} texts, each encoded six times: {wrong} wrong")
    return wrong


def compare_code_points(program, args, scratch):
    """Characters alone, then among combining ones; all are words, so ids show the normal form."""
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    words = {
        "[UNK]": 0,
        **{c: i + 1 for i, c in enumerate(points)},
        **{"##" + c: len(points) + 1 + i for i, c in enumerate(points)},
    }
    for token in ("[CLS]", "[SEP]", "[MASK]"):
        words[token] = len(words)
    rng, wrong = random.Random(args.seed), 0
    marks = [
        chr(c)
        for r in (
            (0x300, 0x345),
            (0x8D0, 0x902),
            (0xF71, 0xF85),
            (0x1B44, 0x1B45),
            (0x302A, 0x3030),
            (0x1D15E, 0x1D173),
            (0x1E000, 0x1E02B),
        )
        for c in range(*r)
    ]
    for lower, strip, chinese, clean in itertools.product([True, False], repeat=4):
        options = dict(
            clean_text=clean, handle_chinese_chars=chinese, strip_accents=strip, lowercase=lower
        )
        hf = build(words, options, [], 10**6)
        path = directory_for(hf, scratch, f"all-{lower:d}{strip:d}{chinese:d}{clean:d}", options)
        texts = [
            " ".join("a" + c + "a" for c in points[i : i + 1000])
            for i in range(0, len(points), 1000)
        ]
        texts += [
            "".join(rng.choice(marks if rng.random() < 0.8 else points) for _ in range(30))
            for _ in range(20000)
        ]
        expected = [hf.encode(t, add_special_tokens=False).ids for t in texts]
        bad = compare(str(options), texts, expected, maxim_ids(program, path, texts))
        wrong += bad
        print(f"{options}: {bad} of {len(texts)} texts wrong", flush=True)
    return wrong


def write_golden(file, seed):
    """Texts and their ids under added tokens of all kinds, for tests/data/wordpiece_test.cpp."""
    rng, tiny = random.Random(seed), json.load(open("tests/golden/tiny_bert/tokenizer.json"))
    words, configurations = tiny["model"]["vocab"], []
    texts = [t for t in (nasty(rng) for _ in range(1000)) if len(t) < 150][:60] + [
        p + q for p in PHRASES for q in ("", " x", "x") if len(p) < 30
    ]
    for options in normalizer_options():
        for max_chars, prefix in ((100, "##"), rng.choice([(4, "##"), (100, "")])):
            hf = build(
                words,
                options,
                [AddedToken(t, special=True, normalized=False) for t in SPECIAL]
                + extra_tokens(rng),
                max_chars,
                prefix,
            )
            saved = json.loads(hf.to_str())
            configurations.append(
                {
                    "normalizer": saved["normalizer"],
                    "added_tokens": saved["added_tokens"],
                    "max_input_chars_per_word": max_chars,
                    "continuing_subword_prefix": prefix,
                    "ids": [hf.encode(t, add_special_tokens=False).ids for t in texts],
                }
            )
    configurations = rng.sample(configurations, 20)
    with open(file, "w") as out:
        json.dump({"texts": texts, "configurations": configurations}, out, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--code-points", action="store_true")
    parser.add_argument("files", nargs="*", help="real text, one text a line")
    parser.add_argument("--golden")
    args = parser.parse_args()
    if args.golden:
        sys.exit(write_golden(args.golden, args.seed))
    with tempfile.TemporaryDirectory() as scratch:
        program = os.path.join(scratch, "tokenizer_ids")
        sources = ["tests/interop/tokenizer_ids.cpp", *glob("data/*.cpp"), *glob("runtime/*.cpp")]
        flags = (
            "-std=c++20 -O2 -fopenmp -I. -DFMT_SHARED -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL"
        )
        libraries = "-lspdlog -lfmt -lz -lutf8proc".split()
        subprocess.run(["g++", *flags.split(), "-o", program, *sources, *libraries], check=True)
        stage = compare_code_points if args.code_points else compare_texts
        sys.exit(1 if stage(program, args, scratch) else 0)
