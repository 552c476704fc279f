// Texts to vectors: the plan of batches, PyLate's own vectors, and independence of batch mates.
#include "trainer/encode_texts.h"

#include <algorithm>
#include <cmath>

#include "runtime/safetensors.h"
#include "tests/catch.h"
#include "tests/trainer/tiny_model.h"

using namespace maxim;
using namespace maxim_tests;

TEST_CASE("the plan has every text once, longest first, within the limits") {
  const auto session = tiny_model();
  const std::vector<std::string> texts = ragged_texts(50);
  const EncodeSettings settings{.batch_size = 8, .batch_tokens = 200};
  const EncodingPlan plan = plan_encoding(*session, texts, false, settings);
  std::vector<int64_t> sorted = plan.order;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 50; ++i) CHECK(sorted[i] == i);
  int64_t before = 1000, largest = 0;
  for (int64_t b = 0; b < plan.batches(); ++b) {
    const int64_t begin = plan.batch_offsets[b], end = plan.batch_offsets[b + 1];
    CHECK(end - begin >= 1);
    CHECK(end - begin <= settings.batch_size);
    int64_t tokens = 0;
    for (int64_t i = begin; i < end; ++i) {
      TokenBatch one;
      session->text_encoder().append_document(one, texts[plan.order[i]], 0, 0);
      CHECK(one.tokens() <= before);
      before = one.tokens();
      tokens += one.tokens();
    }
    CHECK((tokens <= settings.batch_tokens || end - begin == 1));
    largest = std::max(largest, tokens);
  }
  CHECK(plan.limits.tokens == largest);
  CHECK(plan.limits.longest == 48);
  CHECK(plan.limits.sequences <= 8);
  // Equal lengths keep the order of the texts.
  CHECK(plan_encoding(*session, {"war", "city", "road"}, false, settings).order ==
        std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("a text longer than the token budget is a batch of its own, no text is no batch") {
  const auto session = tiny_model();
  const EncodingPlan plan =
      plan_encoding(*session, ragged_texts(6), false, {.batch_size = 8, .batch_tokens = 1});
  CHECK(plan.batches() == 6);
  SoloCommunicator solo;
  const EncodedTexts none = encode_texts(*session, solo, {}, false, {});
  CHECK(none.count() == 0);
  CHECK(none.tokens() == 0);
  CHECK(none.vectors.empty());
}

TEST_CASE("texts get PyLate's vectors, in the order of the texts") {
  const auto session = tiny_model();
  SoloCommunicator solo;
  const auto texts = golden_json("encoder_forward")["texts"].get<std::vector<std::string>>();
  const SafetensorsFile golden("tests/golden/encoder_forward.safetensors");
  for (const bool is_query : {true, false}) {
    const std::string kind = is_query ? "q" : "d";
    const int64_t length = is_query ? 16 : 48, dimension = 64;
    std::vector<float> expected(texts.size() * length * dimension);
    read_as_float(golden, kind + ".embeddings", expected.data());
    const auto* mask = reinterpret_cast<const uint8_t*>(golden.at(kind + ".score_mask").data);
    const auto* ids = reinterpret_cast<const int64_t*>(golden.at(kind + ".input_ids").data);
    const EncodedTexts encoded =
        encode_texts(*session, solo, texts, is_query, {.batch_size = 4, .batch_tokens = 100});
    REQUIRE(encoded.dimension == dimension);
    int64_t row = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      CHECK(encoded.offsets[i] == row);
      for (int64_t t = 0; t < length; ++t) {
        if (mask[i * length + t] == 0) continue;
        CHECK(encoded.token_ids[row] == ids[i * length + t]);
        double worst = 0;
        for (int64_t k = 0; k < dimension; ++k)
          worst = std::max<double>(worst, std::abs(encoded.vectors[row * dimension + k] -
                                                   expected[(i * length + t) * dimension + k]));
        INFO(kind << " text " << i << " token " << t << ": off by " << worst);
        CHECK(worst < 2e-5);
        ++row;
      }
    }
    CHECK(encoded.tokens() == row);
  }
}

TEST_CASE("a text's vectors do not depend on its batch mates") {
  const auto session = tiny_model();
  SoloCommunicator solo;
  const std::vector<std::string> texts = ragged_texts(30);
  const EncodedTexts together = encode_texts(*session, solo, texts, false, {});
  const EncodedTexts alone = encode_texts(*session, solo, texts, false, {.batch_size = 1});
  REQUIRE(together.offsets == alone.offsets);
  CHECK(together.token_ids == alone.token_ids);
  double worst = 0;
  for (size_t i = 0; i < alone.vectors.size(); ++i)
    worst = std::max<double>(worst, std::abs(together.vectors[i] - alone.vectors[i]));
  INFO("off by " << worst);
  CHECK(worst < 2e-6);
}
