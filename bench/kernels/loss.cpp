// The contrastive loss: MaxSim of all queries with all documents, both ways, and cross-entropy of
// the scores. 2 Tq Td D FLOPs forward; backward, 2 D for each query token and document.
#include "bench/kernels/operations.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/maxsim.h"
#include "tests/reference/random.h"

namespace maxim::bench {
namespace {

using maxim_tests::random_integers;
using maxim_tests::Texts;
using Lengths = std::vector<int32_t>;

constexpr double kNoWinner = 65535;  // of a document without tokens

int64_t total(const Lengths& lengths) {
  int64_t sum = 0;
  for (const int32_t length : lengths) sum += length;
  return sum;
}

struct Shape {
  std::string name;
  Lengths queries, documents;
  int64_t width;

  int64_t query_tokens() const { return total(queries); }
  int64_t document_tokens() const { return total(documents); }
  double query_elements() const { return static_cast<double>(query_tokens() * width); }
  double document_elements() const { return static_cast<double>(document_tokens() * width); }
  double pairs() const { return static_cast<double>(query_tokens() * documents.size()); }
  // Scores or their gradients, winners, offsets.
  double table_bytes() const {
    return 4 * static_cast<double>(queries.size() * documents.size()) + 2 * pairs() +
           4 * static_cast<double>(queries.size() + documents.size() + 2);
  }
  double backward_flops() const { return 2 * pairs() * static_cast<double>(width); }
  std::string text() const {
    return fmt::format("{} {} x {} D {}: {} x {} tokens", name, queries.size(), documents.size(),
                       width, query_tokens(), document_tokens());
  }
};

// Operands of all three operations.
struct Table {
  TokenVectors queries, documents;
  Tensor scores, winners, d_scores;
};

TokenVectors vectors(Operands& o, const Lengths& lengths, int64_t width, uint32_t seed) {
  std::vector<int32_t> offsets = {0};
  TokenVectors texts;
  for (const int32_t length : lengths) {
    offsets.push_back(offsets.back() + length);
    texts.longest = std::max<int64_t>(texts.longest, length);
  }
  texts.vectors = o.random(o.type(), {offsets.back(), width}, seed);
  texts.offsets = o.put(offsets);
  return texts;
}

Table table_of(Operands& o, const Shape& s) {
  const auto nq = static_cast<int64_t>(s.queries.size());
  const auto nd = static_cast<int64_t>(s.documents.size());
  return {.queries = vectors(o, s.queries, s.width, 1),
          .documents = vectors(o, s.documents, s.width, 2),
          .scores = o.output(DType::f32, {nq, nd}),
          .winners = o.take(DType::u16, {s.query_tokens(), nd}),
          .d_scores = o.random(DType::f32, {nq, nd}, 3)};
}

Texts texts_of(Operands& o, const TokenVectors& texts) {
  std::vector<int32_t> offsets(texts.offsets.size());
  o.device().copy_out(offsets.data(), texts.offsets);
  return {o.get(texts.vectors), offsets, texts.vectors.cols()};
}

Case forward(DType type, const Shape& s) {
  const auto make = [=](Operands& o) -> Problem {
    const Table t = table_of(o, s);
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const maxim_tests::MaxSim want =
          maxim_tests::maxsim(texts_of(o, t.queries), texts_of(o, t.documents));
      return {{"scores", t.scores, want.scores},
              {"winners", t.winners, {want.winners.begin(), want.winners.end()}}};
    };
    const auto call = [=, &o] {
      o.ops().maxsim_forward(t.scores, t.winners, t.queries, t.documents);
    };
    return {.call = call, .expected = expected};
  };
  const double elements = s.query_elements() + s.document_elements();
  return {.shape = s.text(),
          .bytes = elements * static_cast<double>(size_of(type)) + s.table_bytes(),
          .flops = 2 * s.query_elements() * static_cast<double>(s.document_tokens()),
          .make = make};
}

// A gradient of the token vectors of one side, from the winners of the forward pass.
using Backward = void (Ops::*)(const Tensor&, const Tensor&, const Tensor&, const TokenVectors&,
                               const TokenVectors&);
Case backward(DType type, const Shape& s, Backward operation) {
  const bool of_queries = operation == &Ops::maxsim_backward_queries;
  const auto make = [=](Operands& o) -> Problem {
    const Table t = table_of(o, s);
    o.ops().maxsim_forward(t.scores, t.winners, t.queries, t.documents);
    const Tensor d =
        o.output(DType::f32, {of_queries ? s.query_tokens() : s.document_tokens(), s.width});
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const std::vector<double> winners = o.get(t.winners);
      for (const double winner : winners)
        MAXIM_CHECK(winner == kNoWinner || winner < t.documents.longest,
                    "maxsim_forward's winner {}", winner);
      const maxim_tests::MaxSimGradients g =
          maxim_tests::maxsim_gradients(o.get(t.d_scores), {winners.begin(), winners.end()},
                                        texts_of(o, t.queries), texts_of(o, t.documents));
      return {
          {of_queries ? "d_queries" : "d_documents", d, of_queries ? g.d_queries : g.d_documents}};
    };
    const auto call = [=, &o] {
      (o.ops().*operation)(d, t.d_scores, t.winners, t.queries, t.documents);
    };
    return {.call = call, .expected = expected};
  };
  const double read = of_queries ? s.document_elements() : s.query_elements();
  const double written = of_queries ? s.query_elements() : s.document_elements();
  return {.shape = s.text(),
          .bytes = read * static_cast<double>(size_of(type)) + 4 * written + s.table_bytes(),
          .flops = s.backward_flops(),
          .make = make};
}
Case backward_queries(DType type, const Shape& s) {
  return backward(type, s, &Ops::maxsim_backward_queries);
}
Case backward_documents(DType type, const Shape& s) {
  return backward(type, s, &Ops::maxsim_backward_documents);
}

// d_scores out; scores and targets in.
Case cross_entropy(const std::string& name, int64_t queries, int64_t documents) {
  const auto make = [=](Operands& o) -> Problem {
    const auto targets = random_integers(queries, static_cast<int32_t>(documents), 2);
    const CrossEntropy args{.loss = o.filled(DType::f32, {1}, kBefore),
                            .d_scores = o.output(DType::f32, {queries, documents}),
                            .scores = o.random(DType::f32, {queries, documents}, 1, 20),
                            .targets = o.put(targets),
                            .scale = 1 / static_cast<float>(queries)};
    const auto expected = [=, &o]() -> std::vector<Expected> {
      const maxim_tests::CrossEntropy want =
          maxim_tests::cross_entropy(o.get(args.scores), targets, args.temperature, args.scale);
      return {{"loss", args.loss, {kBefore + want.loss}},
              {"d_scores", args.d_scores, want.d_scores}};
    };
    return {.call = [=, &o] { o.ops().cross_entropy(args); }, .expected = expected};
  };
  return {.shape = fmt::format("{} [{}, {}]", name, queries, documents),
          .bytes = 8 * static_cast<double>(queries * documents) + 4 * static_cast<double>(queries),
          .make = make};
}

}  // namespace

std::vector<Operation> loss_operations(const Settings& settings) {
  const auto uniform = [](int count, int32_t length) { return Lengths(count, length); };
  const std::vector<Shape> small = {{"small", {1, 16, 33, 5}, {1, 2, 0, 12, 13, 70}, kEmbedding},
                                    {"small", {32, 32}, {20, 20, 20}, 40}};
  const std::vector<Shape> real = {
      // The README's batch of 32 rows with texts of ColBERT's lengths, 32 and 180 tokens.
      {"training", uniform(32, 32), uniform(32, 180), kEmbedding},
      // The shape that late-interaction-kernels publishes its time on an H100 for.
      {"in batch", uniform(128, 32), uniform(128, 300), kEmbedding},
      // Evaluation: a chunk of queries against a chunk of a corpus.
      {"retrieval", uniform(256, 32), uniform(2048, 180), kEmbedding}};
  std::vector<Operation> operations;
  const auto add = [&](const char* name, Case (*make)(DType, const Shape&)) {
    Operation operation{.name = name};
    for (const Shape& shape : small) operation.small.push_back(make(settings.type, shape));
    for (const Shape& shape : real) operation.real.push_back(make(settings.type, shape));
    operations.push_back(operation);
  };
  add("maxsim_forward", forward);
  add("maxsim_backward_queries", backward_queries);
  add("maxsim_backward_documents", backward_documents);
  // 128 queries with a positive and a negative each; 256 gathered from all ranks, 16 documents
  // each.
  operations.push_back(
      {.name = "cross_entropy",
       .small = {cross_entropy("small", 33, 70), cross_entropy("small", 2, 1)},
       .real = {cross_entropy("triplets", 128, 256), cross_entropy("gathered", 256, 4096)}});
  return operations;
}

}  // namespace maxim::bench
