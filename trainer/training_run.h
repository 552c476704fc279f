// trainer: arguments, training loop, schedules, evaluators, checkpoints, records. trainer may
// include everything but apps.
//
// A whole training run: opens and checks everything, trains, evaluates, saves.
#pragma once

#include "comm/launch.h"
#include "trainer/training_arguments.h"

namespace maxim {

// Every rank calls it with the same arguments. Returns the exit code: 0, or 128 + signal when
// a signal of comm/stop_signals.h on any rank stopped it between two steps, with a checkpoint
// saved. Throws InputError for bad input, before anything is written that was not there; Error when
// something fails while running.
int run_training(World& world, const TrainingArguments& arguments);

}  // namespace maxim
