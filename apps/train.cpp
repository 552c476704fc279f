// ./train: fine-tunes a BERT into a late-interaction retriever. See --help and README.md.
#include "trainer/command_line.h"
#include "trainer/training_arguments.h"
#include "trainer/training_run.h"

int main(int argc, char** argv) {
  maxim::TrainingArguments arguments;
  maxim::CommandLine command_line("train",
                                  "Fine-tunes a BERT into a late-interaction retriever (ColBERT).");
  maxim::add_training_arguments(command_line, arguments);
  return command_line.run(
      argc, argv, [&](maxim::World& world) { return maxim::run_training(world, arguments); });
}
