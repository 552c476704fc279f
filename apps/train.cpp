// ./train: fine-tunes a BERT into a late-interaction retriever. See --help and README.md.
#include "comm/launch.h"
#include "trainer/command_line.h"
#include "trainer/training_run.h"

int main(int argc, char** argv) {
  return maxim::run_program(argc, argv, [&](maxim::World& world) {
    maxim::TrainingArguments arguments;
    const bool proceed = maxim::parse_command_line(
        argc, argv, "Trains a late-interaction retriever (ColBERT) from a BERT.", world,
        [&](CLI::App& app) { maxim::add_training_arguments(app, arguments); });
    if (proceed) maxim::run_training(world, arguments);
    return 0;
  });
}
