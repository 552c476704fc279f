// The two evaluators, used by ./evaluate and during training. Results are the same on every rank
// and at every world size.
#pragma once

#include "comm/communicator.h"
#include "data/beir.h"
#include "data/training_data.h"
#include "trainer/encode_texts.h"
#include "trainer/model_session.h"
#include "trainer/retrieval_metrics.h"

namespace maxim {

// Exact MaxSim retrieval of the set's queries in its corpus; retrieval_metrics() of the 100 best
// documents. Collective.
Metrics evaluate_retrieval(ModelSession& session, Communicator& communicator,
                           const RetrievalSet& set, const EncodeSettings& settings);

// {"accuracy": share of rows whose positive scores strictly higher than their first negative}, as
// PyLate's ColBERTTripletEvaluator. Throws InputError when the rows have no negative. Collective.
Metrics evaluate_triplets(ModelSession& session, Communicator& communicator,
                          const TrainingData& data, const EncodeSettings& settings);

}  // namespace maxim
