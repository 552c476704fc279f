// Encoding, retrieval and both evaluators spread over the ranks: bit for bit what a rank gets when
// it does all the work alone, with more ranks than batches and with ranks that have nothing to do.
#include "trainer/evaluators.h"

#include <functional>

#include "comm/solo_communicator.h"
#include "tests/catch.h"
#include "tests/mpi/places.h"
#include "tests/mpi/world.h"
#include "tests/reference/temporary_directory.h"
#include "tests/trainer/tiny_model.h"
#include "trainer/retrieval.h"

using namespace maxim;
using namespace maxim_tests;

namespace {

void check_same(const std::vector<std::vector<Hit>>& ours,
                const std::vector<std::vector<Hit>>& alone) {
  REQUIRE(ours.size() == alone.size());
  for (size_t q = 0; q < ours.size(); ++q) {
    REQUIRE(ours[q].size() == alone[q].size());
    for (size_t i = 0; i < ours[q].size(); ++i) {
      INFO("query " << q << " rank " << i << ": document " << ours[q][i].document << " "
                    << ours[q][i].score << ", alone " << alone[q][i].document << " "
                    << alone[q][i].score);
      CHECK(ours[q][i].document == alone[q][i].document);
      CHECK(ours[q][i].score == alone[q][i].score);
    }
  }
}

// Calls `work` with the model on each device, connected.
void on_each_device(const std::function<void(ModelSession&, Communicator&)>& work) {
  for (const Place& place : places()) {
    ModelOptions options = tiny_options();
    options.device = place.nccl == nullptr ? "cpu" : "cuda";
    options.local_rank = world().local_rank;
    ModelSession session(options, false);
    session.connect(*world().communicator, 60);
    INFO(place.name);
    work(session, session.communicator());
  }
}

}  // namespace

TEST_CASE("vectors are the same as alone, for any number of texts") {
  on_each_device([](ModelSession& session, Communicator& communicator) {
    SoloCommunicator solo;
    const EncodeSettings settings{.batch_size = 3, .batch_tokens = 100};
    for (int count : {0, 1, 2, 5, 31}) {
      const std::vector<std::string> texts = ragged_texts(count);
      for (bool is_query : {true, false}) {
        const EncodedTexts ours = encode_texts(session, communicator, texts, is_query, settings);
        const EncodedTexts alone = encode_texts(session, solo, texts, is_query, settings);
        INFO(count << " texts");
        CHECK(ours.offsets == alone.offsets);
        CHECK(ours.token_ids == alone.token_ids);
        CHECK((ours.vectors == alone.vectors));
      }
    }
  });
}

TEST_CASE("retrieval and the kept index are the same as alone, ties included") {
  on_each_device([](ModelSession& session, Communicator& communicator) {
    SoloCommunicator solo;
    const EncodeSettings settings{.batch_size = 4, .batch_tokens = 100};
    std::vector<std::string> documents = ragged_texts(21);
    documents.insert(documents.end(), 9, "war and peace");  // equal scores on several ranks
    for (size_t count : {size_t{1}, size_t{3}, documents.size()}) {
      const std::vector<std::string> part(documents.end() - count, documents.end());
      DocumentIndex index(session, communicator, part, settings);
      for (int64_t k : {1, 4, 100}) {
        const auto alone = retrieve(session, solo, ragged_texts(5), part, k, settings);
        check_same(retrieve(session, communicator, ragged_texts(5), part, k, settings), alone);
        check_same(index.search(ragged_texts(5), k), alone);
      }
    }
  });
}

TEST_CASE("metrics are the same as alone") {
  on_each_device([](ModelSession& session, Communicator& communicator) {
    SoloCommunicator solo;
    const EncodeSettings settings{.batch_size = 4};
    RetrievalSet set;
    set.corpus.texts = ragged_texts(40);
    set.queries.texts = ragged_texts(7);
    for (int64_t q = 0; q < 7; ++q) set.relevant.push_back({{q, 1}, {3 * q + 5, 2}});
    const Metrics alone = evaluate_retrieval(session, solo, set, settings);
    CHECK(evaluate_retrieval(session, communicator, set, settings) == alone);
    CHECK(metric(alone, "recall@100") == 1);
    CHECK(metric(alone, "ndcg@10") > 0);
  });
}

TEST_CASE("triplet accuracy is the same as alone, with fewer rows than ranks too") {
  on_each_device([](ModelSession& session, Communicator& communicator) {
    SoloCommunicator solo;
    for (int count : {1, 2, 3, 7}) {
      const TemporaryDirectory directory;
      const std::vector<std::string> texts = ragged_texts(60);
      std::string rows;
      for (int i = 0; i < count; ++i)
        rows += texts[i + 1] + "\t" + texts[i * 3 + 2] + "\t" + texts[i * 5 + 4] + "\n";
      const TrainingData data({directory.write("rows.tsv", rows)}, TrainingDataOptions{});
      const EncodeSettings settings{.batch_size = 2};
      INFO(count << " rows");
      CHECK(evaluate_triplets(session, communicator, data, settings) ==
            evaluate_triplets(session, solo, data, settings));
    }
  });
}
