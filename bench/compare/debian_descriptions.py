#!/usr/bin/env python3
"""Rows of longer text from apt's translation list: synopsis, long description, another package's.

The list (long descriptions of all Debian packages, free text on most Debian and Ubuntu machines) is

    apt-get indextargets --format '$(FILENAME)' 'Created-By: Translations'

or, where a container leaves it out, fetched by `apt-get -o Acquire::Languages=en update`. It is
packed; apt unpacks it:

    /usr/lib/apt/apt-helper cat-file LIST... | python3 debian_descriptions.py > rows.tsv

Written are lines of query, positive and negative, separated by tabs. Packages built from one source
share texts, so a synopsis or a long description that came before is left out. The negative is the
description before it in the list, often a neighbour's.
"""
import re
import sys


def packages(lines):
    """Yields (synopsis, long description) of each paragraph of a Translation-en list."""
    synopsis, parts = None, []
    for line in lines:
        if line.startswith("Description-en:"):
            synopsis = line.partition(":")[2].strip()
        elif line.startswith(" ") and synopsis is not None:
            text = line.strip()
            if text != ".":  # an empty line within the description
                parts.append(text)
        elif not line.strip():
            if synopsis is not None:
                yield synopsis, " ".join(parts)
            synopsis, parts = None, []
    if synopsis is not None:
        yield synopsis, " ".join(parts)


def main():
    seen, rows = set(), []
    for synopsis, description in packages(sys.stdin):
        synopsis = re.sub(r"\s+", " ", synopsis)
        description = re.sub(r"\s+", " ", description)
        if len(synopsis.split()) < 3 or len(description.split()) < 10:
            continue  # nothing to learn from
        if synopsis in seen or description in seen:
            continue
        seen.update((synopsis, description))
        rows.append((synopsis, description))
    if len(rows) < 2:
        sys.exit("debian_descriptions.py: no package descriptions on standard input")
    for i, (synopsis, description) in enumerate(rows):
        print(synopsis, description, rows[i - 1][1], sep="\t")
    print(f"{len(rows)} rows", file=sys.stderr)


main()
