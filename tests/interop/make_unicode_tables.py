#!/usr/bin/env python3
"""Prints the range tables of data/bert_unicode.cpp, asking `tokenizers` about every code point.

pip install tokenizers==0.22.2 && python3 tests/interop/make_unicode_tables.py
"""

from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def bert(**flags):
    options = dict(
        clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False
    )
    return normalizers.BertNormalizer(**{**options, **flags}).normalize_str


def show(name, members):
    ranges = []
    for c in sorted(members):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    print(f"// {name}: {len(members)} code points")
    print(", ".join("{0x%X, 0x%X}" % tuple(r) for r in ranges))


clean, strip, lower = bert(clean_text=True), bert(strip_accents=True), bert(lowercase=True)
decompose = normalizers.NFD().normalize_str
split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str

show("kRemoved", [c for c in CODE_POINTS if clean(chr(c)) == ""])
marks = {c for c in CODE_POINTS if strip(chr(c)) == ""}
show("kNonspacingMarks", marks)
show("kPunctuation", [c for c in CODE_POINTS if c >= 0x80 and len(split("a" + chr(c) + "a")) == 3])

# Characters that a mark of class 1 (U+0334) or 230 (U+0301) moves past, or that move past it.
reordered = {
    c
    for c in CODE_POINTS
    if decompose("\u0301" + chr(c))[0] != "\u0301" or decompose(chr(c) + "\u0334")[0] == "\u0334"
}
show("combining, but not stripped", reordered - marks)
show(
    "decomposed beyond U+FFFF",
    [c for c in CODE_POINTS if c > 0xFFFF and decompose(chr(c)) != chr(c)],
)

python = unicodedata.unidata_version
newer = {c: lower(chr(c)) for c in CODE_POINTS if lower(chr(c)) != chr(c).lower()}
print(
    f"// lower case that Python's Unicode {python} lacks:",
    {hex(c): hex(ord(s)) for c, s in newer.items()},
)

# \w of the `regex` crate, seen through a single_word token: it is not found after a word character.
probe = Tokenizer(WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
probe.add_tokens([AddedToken("\u4e00x", single_word=True, normalized=False)])
words = {c for c in CODE_POINTS if 1 not in probe.encode(chr(c) + "\u4e00x").ids}
circled = {
    c
    for a, b in ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
    for c in range(a, b + 1)
}
categories = {"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Nd", "Pc", "Mn", "Mc", "Me"}
known = (
    {c for c in CODE_POINTS if unicodedata.category(chr(c)) in categories}
    | circled
    | {0x200C, 0x200D}
)
assert not known - words
show(f"kNewerWordCharacters (after Unicode {python})", words - known)
