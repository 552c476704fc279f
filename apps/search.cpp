// search: the documents of a corpus that answer a query best, by exact MaxSim over all ranks.
// Queries come from a file, or are typed one a line; the answers are lines of rank, score, id and
// text, separated by tabs, or JSON lines in --output_file.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "comm/progress.h"
#include "data/beir.h"
#include "runtime/files.h"
#include "runtime/log.h"
#include "trainer/command_line.h"
#include "trainer/retrieval.h"

namespace {

using namespace maxim;

struct Options {
  ModelOptions model;
  EncodeSettings settings;
  std::string corpus, queries, output_file;
  int64_t top_k = 10;
};

// A text on one line: what would break the columns is a blank.
std::string on_one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  return text;
}

void print_hits(const std::vector<Hit>& hits, const TextFile& corpus) {
  for (size_t i = 0; i < hits.size(); ++i)
    fmt::print("{}\t{:.4f}\t{}\t{}\n", i + 1, hits[i].score,
               on_one_line(corpus.ids[hits[i].document]),
               on_one_line(corpus.texts[hits[i].document]));
  std::fflush(stdout);
}

// One JSON object a query.
void write_hits(const std::string& path, const TextFile& queries, const TextFile& corpus,
                const std::vector<std::vector<Hit>>& hits) {
  OutputFile out(path);
  for (size_t q = 0; q < hits.size(); ++q) {
    nlohmann::ordered_json line = {{"id", queries.ids[q]}, {"text", queries.texts[q]}};
    line["hits"] = nlohmann::ordered_json::array();
    for (const Hit& hit : hits[q])
      line["hits"].push_back({{"id", corpus.ids[hit.document]}, {"score", hit.score}});
    out.write(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  out.finish();
}

// The next line that is not blank, typed at rank 0 and given to all ranks; false at the end.
bool next_query(Communicator& communicator, std::string& query) {
  std::string message;  // empty at the end, else the line after a mark
  if (communicator.rank() == 0) {
    const Phase phase("waiting for a query");
    std::string line;
    do {
      if (isatty(STDIN_FILENO)) fmt::print(stderr, "query> ");
      line.clear();
    } while (std::getline(std::cin, line) && line.find_first_not_of(" \t\r") == std::string::npos);
    if (std::cin) message = "q" + line;
  }
  message = communicator.all_gather_text(message)[0];
  if (message.empty()) return false;
  query = message.substr(1);
  return true;
}

void answer_file(const Options& options, ModelSession& session, Communicator& communicator,
                 const TextFile& corpus, const TextFile& queries, StagedFile* file) {
  const std::vector<std::vector<Hit>> hits =
      retrieve(session, communicator, queries.texts, corpus.texts, options.top_k, options.settings);
  if (communicator.rank() != 0) return;
  if (file != nullptr) {
    write_hits(file->staging(), queries, corpus, hits);
    file->commit();
    return;
  }
  for (size_t q = 0; q < hits.size(); ++q) {
    fmt::print("{}{}: {}\n", q == 0 ? "" : "\n", on_one_line(queries.ids[q]),
               on_one_line(queries.texts[q]));
    print_hits(hits[q], corpus);
  }
}

void answer_typed(const Options& options, ModelSession& session, Communicator& communicator,
                  const TextFile& corpus) {
  DocumentIndex index(session, communicator, corpus.texts, options.settings);
  log_info("{} documents, {} vectors; type a query", corpus.texts.size(), index.tokens());
  for (std::string query; next_query(communicator, query);) {
    const std::vector<std::vector<Hit>> hits = index.search({query}, options.top_k);
    if (communicator.rank() == 0) print_hits(hits[0], corpus);
  }
}

int search(const Options& options, World& world) {
  Communicator& communicator = *world.communicator;
  if (options.queries.empty() && !options.output_file.empty())
    fail_input("--output_file needs --queries: the answers to typed lines go to standard output");
  const auto file =
      stage_output(options.output_file, {options.corpus, options.queries}, communicator);
  TextFile corpus, queries;
  communicator.checked([&] {
    corpus = read_texts(options.corpus);
    if (!options.queries.empty()) queries = read_texts(options.queries);
  });
  communicator.demand_same(fingerprint(corpus) + fingerprint(queries));
  const auto session = open_model(options.model, false, world);
  if (options.queries.empty()) {
    answer_typed(options, *session, session->communicator(), corpus);
  } else {
    answer_file(options, *session, session->communicator(), corpus, queries, file.get());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CommandLine command("search", "Finds the documents that answer a query best, by exact MaxSim.");
  command.add_model_options(options.model);
  const auto add = [&](const char* name, auto& value, const char* description) {
    return command.app().add_option(name, value, description)->group("Search");
  };
  add("--corpus", options.corpus, "Documents: one a line, or .jsonl with keys text and _id")
      ->required();
  add("--queries", options.queries, "Queries, in the same forms; else they are read as typed");
  add("--top_k", options.top_k, "Documents given for a query")->check(whole_number(1));
  add("--output_file", options.output_file, "JSON lines: id, text, hits of id and score");
  command.add_eval_options(options.settings);
  return command.run(argc, argv, [&](World& world) { return search(options, world); });
}
