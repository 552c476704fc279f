// Scores, losses and gradients against PyLate's, masked document tokens left out of the maximum
// (golden/exclude.*); and where PyLate multiplies them by zero instead, how the numbers differ.
#include <algorithm>
#include <cmath>

#include "comm/solo_communicator.h"
#include "runtime/files.h"
#include "tests/catch.h"
#include "tests/loss/run_contrastive.h"
#include "tests/reference/compare.h"
#include "tests/reference/golden_texts.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

struct Golden {
  HostDevice device;
  std::unique_ptr<Ops> ops = make_cpu_ops(device);
  SoloCommunicator solo;
  SafetensorsFile exclude{"tests/golden/exclude.safetensors"};
  SafetensorsFile cases{"tests/golden/scores_cases.safetensors"};

  std::vector<float> scores_of(Texts queries, Texts documents) {
    std::vector<float> scores(queries.count() * documents.count());
    const auto view = [](Texts& texts) {
      int32_t longest = 0;
      for (int64_t i = 0; i < texts.count(); ++i)
        longest = std::max(longest, texts.offsets[i + 1] - texts.offsets[i]);
      return TokenVectors{Tensor::of(texts.vectors, texts.tokens(), texts.width),
                          Tensor::of(texts.offsets), longest};
    };
    ops->maxsim_forward(Tensor::of(scores, queries.count(), documents.count()), Tensor(),
                        view(queries), view(documents));
    return scores;
  }

  // Gradients within 1e-4 of their largest value, as the golden files promise.
  void compare_gradients(const ContrastiveResult& got, const Texts& d_queries,
                         const Texts& d_documents) {
    const auto compare = [](const char* what, const std::vector<float>& have, const Texts& want) {
      float largest = 0;
      for (const float v : want.vectors) largest = std::max(largest, std::abs(v));
      require_close(what, have, to_double(want.vectors), 1e-4 * largest + 1e-7, 0, want.width);
    };
    compare("d_queries", got.d_queries, d_queries);
    compare("d_documents", got.d_documents, d_documents);
  }
};

}  // namespace

TEST_CASE_METHOD(Golden, "golden scores: ties, negative similarities, masked tokens") {
  const std::vector<uint8_t> all_queries(3 * 5, 1), all_documents(6 * 7, 1);
  const auto packed = [&](const char* name, const std::vector<uint8_t>& mask, int64_t texts) {
    return pack(golden_floats(cases, name), mask, texts, 8);
  };
  const Texts queries = packed("Q", all_queries, 3);
  const ContrastiveRun settings{0.5, 1.0 / 3, true, 2};
  {
    INFO("nothing masked");
    const Texts documents = packed("D", all_documents, 6);
    require_close("scores", scores_of(queries, documents),
                  to_double(golden_floats(cases, "nomask.scores")), 1e-5);
    const ContrastiveResult got = run_contrastive(*ops, solo, queries, documents, settings);
    CHECK(got.loss == Approx(golden_floats(cases, "nomask.loss")[0]).epsilon(1e-5));
    compare_gradients(got, packed("nomask.dQ", all_queries, 3),
                      packed("nomask.dD", all_documents, 6));
  }
  {
    INFO("masked tokens left out");
    const std::vector<uint8_t> mask = golden_mask(exclude, "cases.dmask");
    const Texts documents = packed("D", mask, 6);
    require_close("scores", scores_of(queries, documents),
                  to_double(golden_floats(exclude, "cases.scores")), 1e-5);
    const ContrastiveResult got = run_contrastive(*ops, solo, queries, documents, settings);
    CHECK(got.loss == Approx(golden_floats(exclude, "cases.loss")[0]).epsilon(1e-5));
    compare_gradients(got, pack(golden_floats(exclude, "cases.dQ"), all_queries, 3, 8),
                      pack(golden_floats(exclude, "cases.dD"), mask, 6, 8));
  }
}

// PyLate multiplies masked similarities by 0 before the maximum, so a document with any masked
// position cannot score below 0 for a query token: padding beats a real negative similarity. That
// is a fault, and Maxim's numbers are those of golden/exclude.*. Here: PyLate's are ours with the
// maximum raised to 0, and they do differ. A document without tokens scores 0 in both.
TEST_CASE_METHOD(Golden, "golden scores: where PyLate's zero masking differs") {
  const std::vector<uint8_t> mask = golden_mask(cases, "dmask");
  const Texts queries = pack(golden_floats(cases, "Q"), std::vector<uint8_t>(15, 1), 3, 8);
  const Texts documents = pack(golden_floats(cases, "D"), mask, 6, 8);
  const std::vector<float> ours = scores_of(queries, documents);
  const std::vector<float> pylate = golden_floats(cases, "dmask.scores");
  int differ = 0;
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 6; ++j) {
      const int32_t begin = documents.offsets[j], end = documents.offsets[j + 1];
      double raised = 0;
      for (int32_t s = queries.offsets[i]; s < queries.offsets[i + 1]; ++s) {
        double best = end - begin < 7 ? 0 : -INFINITY;
        for (int32_t t = begin; t < end; ++t) {
          double similarity = 0;
          for (int k = 0; k < 8; ++k)
            similarity += queries.vectors[s * 8 + k] * documents.vectors[t * 8 + k];
          best = std::max(best, similarity);
        }
        raised += best;
      }
      INFO("query " << i << ", document " << j);
      CHECK(pylate[i * 6 + j] == Approx(raised).margin(1e-5));
      if (begin == end) CHECK(ours[i * 6 + j] == 0);
      if (std::abs(ours[i * 6 + j] - pylate[i * 6 + j]) > 1e-3) ++differ;
    }
  }
  CHECK(differ > 0);
}

TEST_CASE_METHOD(Golden, "golden loss: four rows of a real encoder") {
  const auto losses = read_json("tests/golden/exclude.json")["losses"];
  const Texts queries = golden_texts(exclude, "emb.", {"query"});
  const auto check = [&](const std::string& name, const std::vector<std::string>& columns,
                         double temperature, double epsilon) {
    INFO(name);
    const Texts documents = golden_texts(exclude, "emb.", columns);
    const ContrastiveResult got =
        run_contrastive(*ops, solo, queries, documents,
                        {temperature, 0.25, true, static_cast<int64_t>(columns.size())});
    CHECK(got.loss == Approx(losses[name].get<double>()).epsilon(epsilon));
    if (temperature != 1) return;  // no gradients of embeddings there
    require_close("scores", scores_of(queries, documents),
                  to_double(golden_floats(exclude, "scores." + name)), 2e-4);
    const std::string prefix = "demb." + name + ".";
    compare_gradients(got, golden_texts(exclude, prefix, {"query"}),
                      golden_texts(exclude, prefix, columns));
  };
  check("contrastive.t1", {"positive", "negative"}, 1, 1e-5);
  check("contrastive.t005", {"positive", "negative"}, 0.05, 1e-4);
  check("contrastive.pairs", {"positive"}, 1, 1e-5);
  check("contrastive.2neg", {"positive", "negative", "negative2"}, 1, 1e-5);
}
