// Opening a model: overrides, prefixes, what is refused, and saving.
#include "trainer/model_session.h"

#include <filesystem>

#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/reference/temporary_directory.h"
#include "tests/trainer/tiny_model.h"
#include "trainer/encode_texts.h"

using namespace maxim;
using namespace maxim_tests;
namespace fs = std::filesystem;

namespace {

std::vector<float> vectors_of(ModelSession& session, bool is_query) {
  SoloCommunicator solo;
  return encode_texts(session, solo, {"War and Peace!", "plants", ""}, is_query, {}).vectors;
}

std::string error_of(const ModelOptions& options) {
  try {
    ModelSession session(options, false);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no InputError";
}

// The tiny model as a plain BERT, without projection and ColBERT's settings.
ModelOptions plain_bert(const TemporaryDirectory& directory, uint64_t seed) {
  for (const char* name :
       {"config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"})
    if (!fs::exists(directory.file(name)))
      fs::copy_file(fs::path("tests/golden/tiny_bert") / name, directory.file(name));
  return {.model_name_or_path = directory.path(), .overrides = {}, .seed = seed};
}

}  // namespace

TEST_CASE("a PyLate model keeps its settings, and overrides replace them") {
  const auto session = tiny_model();
  CHECK(session->config().query_length == 16);
  CHECK(session->config().document_length == 48);
  CHECK(session->config().embedding_size == 64);
  CHECK(session->config().skiplist_words.size() == 32);
  CHECK(session->bert().vocab_size == 1396);
  CHECK_FALSE(session->has_new_projection());

  const auto changed = tiny_model({.query_prefix = "",
                                   .document_prefix = "[Passage] ",
                                   .query_length = 20,
                                   .document_length = 256,
                                   .do_query_expansion = false,
                                   .attend_to_expansion_tokens = true,
                                   .skiplist_words = std::vector<std::string>{},
                                   .embedding_size = {}});
  CHECK(changed->config().query_prefix == "");
  CHECK(changed->config().document_prefix == "[Passage] ");
  CHECK(changed->config().query_length == 20);
  CHECK(changed->config().document_length == 256);
  CHECK_FALSE(changed->config().do_query_expansion);
  CHECK(changed->config().attend_to_expansion_tokens);
  CHECK(changed->config().skiplist_words.empty());
  CHECK(changed->bert().vocab_size == 1397);
  CHECK(changed->parameters().value("embeddings.word_embeddings.weight").rows() == 1397);
  CHECK(changed->tokenizer().id_of("[Passage] ") == 1396);

  // [CLS] peace [SEP] as a query without prefix and expansion; [CLS] [Passage] peace ! [SEP].
  TokenBatch batch;
  changed->text_encoder().append_query(batch, "peace", 0, 0);
  CHECK(batch.tokens() == 3);
  batch.clear();
  changed->text_encoder().append_document(batch, "peace!", 0, 0);
  CHECK(batch.tokens() == 5);
  CHECK(batch.token_ids[1] == 1396);
  CHECK(batch.scored_rows.size() == 5);  // nothing is skipped
}

TEST_CASE("what does not fit the model is refused with the numbers") {
  using Overrides = ModelOverrides;
  ModelOptions options = tiny_options();
  const auto refused = [&](const auto& change, const std::vector<std::string>& words) {
    Overrides overrides;
    change(overrides);
    options.overrides = overrides;
    const std::string message = error_of(options);
    for (const std::string& word : words) {
      INFO("'" << word << "' in: " << message);
      CHECK(message.find(word) != std::string::npos);
    }
  };
  refused([](Overrides& o) { o.document_length = 257; }, {"document_length", "257", "256"});
  refused([](Overrides& o) { o.query_length = 600; }, {"query_length", "600", "256"});
  refused([](Overrides& o) { o.query_length = 2; }, {"2", "length"});
  refused([](Overrides& o) { o.query_prefix = "[UNK]"; }, {"[UNK]", "unknown"});
  refused([](Overrides& o) { o.embedding_size = 96; }, {"96", "64"});
  options.model_name_or_path = "tests/golden/none";
  refused([](Overrides&) {}, {"tests/golden/none"});
}

TEST_CASE("one prefix may serve both kinds, or none") {
  const auto shared = tiny_model({.query_prefix = "[X] ",
                                  .document_prefix = "[X] ",
                                  .query_length = {},
                                  .document_length = {},
                                  .do_query_expansion = {},
                                  .attend_to_expansion_tokens = {},
                                  .skiplist_words = {},
                                  .embedding_size = {}});
  CHECK(shared->bert().vocab_size == 1397);
}

TEST_CASE("a saved model gives the same vectors, settings and files") {
  const TemporaryDirectory directory;
  ModelOptions options = tiny_options();
  options.overrides.document_prefix = "[Passage] ";
  options.overrides.query_length = 24;
  ModelSession first(options, false);
  first.save(directory.path());
  ModelSession second({.model_name_or_path = directory.path(), .overrides = {}}, false);
  CHECK(second.config().query_length == 24);
  CHECK(second.config().document_length == 48);
  CHECK(second.config().document_prefix == "[Passage] ");
  CHECK(second.bert().vocab_size == 1397);
  for (bool is_query : {true, false})
    CHECK(vectors_of(first, is_query) == vectors_of(second, is_query));
  const TemporaryDirectory again;
  second.save(again.path());
  for (const auto& entry : fs::recursive_directory_iterator(directory.path())) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), directory.path());
    INFO(name);
    CHECK((read_text(entry.path()) == read_text(again.file(name))));
  }
}

TEST_CASE("a plain BERT gets a projection and prefixes from the seed") {
  const TemporaryDirectory directory;
  ModelSession one(plain_bert(directory, 1), false), same(plain_bert(directory, 1), false),
      other(plain_bert(directory, 2), false);
  CHECK(one.has_new_projection());
  CHECK(one.config().embedding_size == 128);
  CHECK(one.config().query_length == 32);
  CHECK(vectors_of(one, true) == vectors_of(same, true));
  CHECK(vectors_of(one, true) != vectors_of(other, true));
}
