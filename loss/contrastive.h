// loss: losses on packed unit vectors. loss may include kernels, comm and runtime.
//
// In-batch contrastive loss (InfoNCE over MaxSim), as PyLate's Contrastive but exact at any world
// size:
//   score(i, j) = sum_s max_t q_is . d_jt,  candidates j = d * N + k: all N documents of all rows
//   d, loss = scale * sum_i (log-sum-exp_j(score_ij / temperature) - score_i,iN / temperature)
// with scale = 1 / (queries of the global step), or 1 when not averaged. With gather_across_devices
// the candidates are the documents of all ranks: their vectors are gathered packed, and the
// gradients go back by reduce-scatter (sum). Without it they are this rank's own. Nothing is
// multiplied by the world size.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "kernels/ops.h"
#include "runtime/device.h"

namespace maxim {

struct ContrastiveSettings {
  float temperature = 1;
  bool gather_across_devices = true;
  int64_t documents_per_query = 1;
};

// One micro-batch of one rank. Host offsets are beside the device ones since the gather needs
// counts.
struct ContrastiveBatch {
  Tensor queries;                         // [Tq, D] unit vectors
  Tensor documents;                       // [Td, D]
  std::vector<int32_t> query_offsets;     // host [Nq+1], from 0
  std::vector<int32_t> document_offsets;  // host [Nq*N+1], from 0
};

class ContrastiveLoss {
 public:
  ContrastiveLoss(Ops& ops, Communicator& communicator, const ContrastiveSettings& settings);

  // Once a micro-batch, before run(): begins to gather the documents, whose vectors the device was
  // asked for before, beside what it is asked for until run(): the vectors of the queries.
  // Collective when gathering, also of ranks without rows; what it takes from `arena` stays.
  void gather(const ContrastiveBatch& batch, Arena& arena);
  // loss [1] += this rank's part (the sum over ranks is the loss); d_queries and d_documents are
  // written. Collective as gather() is.
  void run(const ContrastiveBatch& batch, float scale, const Tensor& loss, const Tensor& d_queries,
           const Tensor& d_documents, Arena& arena);
  // From now on gradients, but not the loss, are multiplied by this; see kernels' LossScale.
  void set_loss_scale(const Tensor& loss_scale) { loss_scale_ = loss_scale; }
  // Arena bytes for at most these numbers on one rank.
  int64_t arena_bytes(int64_t queries, int64_t query_tokens, int64_t documents,
                      int64_t document_tokens, int64_t embedding_size) const;

 private:
  bool gathers() const { return settings_.gather_across_devices && communicator_.size() > 1; }
  void find_candidates(const std::vector<int32_t>& document_offsets);

  Ops& ops_;
  Communicator& communicator_;
  ContrastiveSettings settings_;
  Tensor loss_scale_;
  // Of the micro-batch at hand; members keep their capacity.
  std::vector<int32_t> lengths_, all_lengths_;  // tokens of each own document, of each candidate
  std::vector<int32_t> all_offsets_;            // [candidates + 1]
  std::vector<int64_t> documents_of_rank_, tokens_of_rank_;
  std::vector<int32_t> targets_;
  Tensor candidates_;           // their vectors
  int64_t first_document_ = 0;  // of this rank, among the candidates
};

}  // namespace maxim
