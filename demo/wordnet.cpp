// wordnet DATA_NOUN OUTPUT_DIRECTORY: WordNet's nouns as text for a reverse dictionary, in which a
// definition finds the card of its word.
//
// A synset of data.noun (manual page wndb(5)) is one line, fields separated by blanks:
//   offset lex_filenum type lemma_count(hex) {lemma lex_id}* pointer_count {symbol offset pos n}*
//   | definition; more definition; "example"; "example"
// Its definition is the query and its card the document:
//   lemmas. kind of: … . includes: … . has parts: … . part of: … . field: … . for example: …
// Left out are synsets of animals (lex_filenum 05) and plants (20), whose definitions are lists of
// families; instances (cities, people), which no definition can tell; definitions under five words,
// that name their own lemma, or that came before.
//
// Every tenth offset (0 as last digit) is held out; the digit before it makes 0 a test query and 1
// a dev query. So splits do not depend on the order or number of synsets. The others are training
// rows: definition, card, and as negative the card of the sibling before it (same first hypernym;
// the first child takes the last), the hardest wrong answers there are. Written are train.tsv and,
// in BEIR form, corpus.jsonl, queries.jsonl, qrels/test.tsv and qrels/dev.tsv.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "runtime/files.h"

using namespace maxim;

namespace {

struct Pointer {
  std::string symbol, offset, part_of_speech;
};

struct Synset {
  std::string offset, lex_filenum, gloss;
  std::vector<std::string> lemmas;
  std::vector<Pointer> pointers;
};

struct Row {
  std::string definition, card;
  std::string family;  // offset of the first hypernym, "" for none
};

using Lemmas = std::unordered_map<std::string, std::vector<std::string>>;  // by synset offset

Synset parse_synset(const std::string& line, const std::string& place) {
  const size_t bar = line.find(" | ");
  if (bar == std::string::npos) fail_input("{}: expected \" | \" before the definition", place);
  Synset synset;
  synset.gloss = line.substr(bar + 3);
  std::istringstream head(line.substr(0, bar));
  std::string type, lemma, skipped;
  int lemmas = 0, pointers = 0;
  head >> synset.offset >> synset.lex_filenum >> type >> std::hex >> lemmas >> std::dec;
  if (!head || synset.offset.size() != 8 || type != "n" || lemmas < 1)
    fail_input("{}: expected \"offset lex_filenum n lemma_count\", found \"{}\"", place,
               line.substr(0, 40));
  for (int i = 0; i < lemmas && head >> lemma >> skipped; ++i) {
    std::replace(lemma.begin(), lemma.end(), '_', ' ');
    synset.lemmas.push_back(lemma);
  }
  head >> pointers;
  for (int i = 0; i < pointers && head; ++i) {
    Pointer& pointer = synset.pointers.emplace_back();
    head >> pointer.symbol >> pointer.offset >> pointer.part_of_speech >> skipped;
  }
  if (!head)
    fail_input("{}: {} lemmas or {} pointers announced, fewer found", place, lemmas, pointers);
  return synset;
}

// All synsets in file order. Lines that start with two blanks are the licence.
std::vector<Synset> read_synsets(const std::string& path) {
  std::istringstream lines(read_text(path));
  std::vector<Synset> synsets;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number)
    if (!line.starts_with("  "))
      synsets.push_back(parse_synset(line, fmt::format("{}:{}", path, number)));
  if (synsets.empty()) fail_input("{}: no synset in it; expected WordNet's data.noun", path);
  return synsets;
}

std::string stripped(const std::string& text, const char* characters) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(characters) - first + 1);
}

// Where the first example begins: a semicolon, perhaps blanks, a quote.
size_t examples_start(const std::string& gloss) {
  for (size_t i = gloss.find(';'); i != std::string::npos; i = gloss.find(';', i + 1)) {
    const size_t next = gloss.find_first_not_of(' ', i + 1);
    if (next != std::string::npos && gloss[next] == '"') return i;
  }
  return gloss.size();
}

// The first two quoted strings of `text`, joined by "; ".
std::string two_examples(const std::string& text) {
  std::string joined;
  size_t end = 0;
  for (int i = 0; i < 2; ++i) {
    const size_t open = text.find('"', end), close = text.find('"', open + 1);
    if (open == std::string::npos || close == std::string::npos) break;
    joined += (i == 0 ? "" : "; ") + text.substr(open + 1, close - open - 1);
    end = close + 1;
  }
  return joined;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Whether a lemma stands in the definition as a word; punctuation separates words there.
bool names_itself(const Synset& synset, const std::string& definition) {
  std::string words = " " + lower(definition) + " ";
  for (char& c : words)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = ' ';
  return std::any_of(synset.lemmas.begin(), synset.lemmas.end(), [&](const std::string& lemma) {
    return words.find(" " + lower(lemma) + " ") != std::string::npos;
  });
}

// The first hypernym's offset; "" for none.
std::string first_hypernym(const Synset& synset) {
  for (const Pointer& pointer : synset.pointers)
    if (pointer.symbol == "@") return pointer.offset;
  return "";
}

int count_words(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  int count = 0;
  while (words >> word) ++count;
  return count;
}

bool is_kept(const Synset& synset, const std::string& definition) {
  const bool is_instance =
      std::any_of(synset.pointers.begin(), synset.pointers.end(),
                  [](const Pointer& pointer) { return pointer.symbol == "@i"; });
  return synset.lex_filenum != "05" && synset.lex_filenum != "20" && !is_instance &&
         count_words(definition) >= 5 && !names_itself(synset, definition);
}

// One part of a card: at most `each` lemmas of every noun that `symbol` (or its form for instances,
// as "~i") points to, `most` in all.
struct CardPart {
  const char* title;
  const char* symbol;
  size_t most, each;
};
constexpr CardPart kCardParts[] = {{". kind of: ", "@", 3, 2},
                                   {". includes: ", "~", 6, 1},
                                   {". has parts: ", "%p", 5, 1},
                                   {". part of: ", "#p", 3, 1},
                                   {". field: ", ";c", 2, 1}};

std::string joined_lemmas(const Synset& synset, const CardPart& part, const Lemmas& lemmas) {
  const std::string symbol = part.symbol;
  std::string joined;
  size_t count = 0;
  for (const Pointer& pointer : synset.pointers) {
    if (pointer.symbol != symbol && pointer.symbol != symbol + "i") continue;
    if (pointer.part_of_speech != "n") continue;
    const auto target = lemmas.find(pointer.offset);
    if (target == lemmas.end())
      fail_input("synset {} points to {}, which is not in the file", synset.offset, pointer.offset);
    const size_t take = std::min({part.each, target->second.size(), part.most - count});
    for (size_t i = 0; i < take; ++i) joined += (count++ == 0 ? "" : ", ") + target->second[i];
  }
  return joined;
}

std::string word_card(const Synset& synset, const Lemmas& lemmas, const std::string& examples) {
  std::string card = synset.lemmas[0];
  for (size_t i = 1; i < synset.lemmas.size(); ++i) card += ", " + synset.lemmas[i];
  for (const CardPart& part : kCardParts) {
    const std::string words = joined_lemmas(synset, part, lemmas);
    if (!words.empty()) card += part.title + words;
  }
  return examples.empty() ? card : card + ". for example: " + examples;
}

// negatives[i]: the row whose card is row i's negative. A row with the same card is no negative, so
// the search goes on backwards from it.
std::vector<size_t> negatives(const std::vector<Row>& rows) {
  std::unordered_map<std::string, size_t> sibling;  // the last row of each family before this one
  for (size_t i = 0; i < rows.size(); ++i)
    sibling[rows[i].family] = i;  // before the first: the last
  std::vector<size_t> negative(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    negative[i] = std::exchange(sibling[rows[i].family], i);
    for (size_t tries = 0; rows[negative[i]].card == rows[i].card; ++tries) {
      if (tries == rows.size())
        fail_input("no two training rows with different cards: no negative");
      negative[i] = (negative[i] == 0 ? rows.size() : negative[i]) - 1;
    }
  }
  return negative;
}

struct Extraction {
  std::vector<Row> training;
  std::string corpus, queries;  // file contents
  std::string test_qrels, dev_qrels;
  int documents = 0, test_queries = 0, dev_queries = 0;
};

std::string json_line(nlohmann::ordered_json object) { return object.dump() + "\n"; }

void hold_out(const std::string& offset, const Row& row, Extraction& to) {
  to.corpus += json_line({{"_id", "n" + offset}, {"title", ""}, {"text", row.card}});
  ++to.documents;
  const char split = offset[offset.size() - 2];
  if (split != '0' && split != '1') return;
  to.queries += json_line({{"_id", "q" + offset}, {"text", row.definition}});
  ++(split == '0' ? to.test_queries : to.dev_queries);
  (split == '0' ? to.test_qrels : to.dev_qrels) += fmt::format("q{0}\tn{0}\t1\n", offset);
}

Extraction extract(const std::vector<Synset>& synsets) {
  Lemmas lemmas;
  for (const Synset& synset : synsets) lemmas[synset.offset] = synset.lemmas;
  std::unordered_set<std::string> seen;
  Extraction result;
  for (const Synset& synset : synsets) {
    const size_t examples = examples_start(synset.gloss);
    const std::string definition = stripped(synset.gloss.substr(0, examples), " ;\t");
    if (!is_kept(synset, definition) || !seen.insert(definition).second) continue;
    const Row row{definition,
                  word_card(synset, lemmas, two_examples(synset.gloss.substr(examples))),
                  first_hypernym(synset)};
    if (synset.offset.back() == '0')
      hold_out(synset.offset, row, result);
    else
      result.training.push_back(row);
  }
  return result;
}

void write(const Extraction& result, const std::string& directory) {
  const std::vector<size_t> negative = negatives(result.training);
  make_directories(directory + "/qrels");
  OutputFile train(directory + "/train.tsv");
  for (size_t i = 0; i < negative.size(); ++i) {
    const Row& row = result.training[i];
    train.write(row.definition + "\t" + row.card + "\t" + result.training[negative[i]].card + "\n");
  }
  train.finish();
  write_text(directory + "/corpus.jsonl", result.corpus);
  write_text(directory + "/queries.jsonl", result.queries);
  const std::string header = "query-id\tcorpus-id\tscore\n";
  write_text(directory + "/qrels/test.tsv", header + result.test_qrels);
  write_text(directory + "/qrels/dev.tsv", header + result.dev_qrels);
  std::printf("%zu training rows, %d documents, %d test and %d dev queries\n", negative.size(),
              result.documents, result.test_queries, result.dev_queries);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) fail_input("usage: {} DATA_NOUN OUTPUT_DIRECTORY", argv[0]);
  write(extract(read_synsets(argv[1])), argv[2]);
  return 0;
} catch (const InputError& error) {
  std::fprintf(stderr, "wordnet: %s\n", error.what());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "wordnet: %s\n", error.what());
  return 1;
}
