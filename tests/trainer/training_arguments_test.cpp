// Flags of ./train that are refused before anything is read.
#include "trainer/training_arguments.h"

#include "runtime/error.h"
#include "tests/catch.h"
#include "tests/reference/message_of.h"

using namespace maxim;
using maxim_tests::require_message;

TEST_CASE("numbers that float32 does not hold are refused by name", "[training_arguments]") {
  const auto refused = [](const char* flag, double TrainingArguments::*value, double number,
                          const char* what) {
    TrainingArguments arguments;
    arguments.output_dir = "out";
    CHECK_NOTHROW(check_training_arguments(arguments));
    arguments.*value = number;
    require_message<InputError>([&] { check_training_arguments(arguments); }, {flag, what});
  };
  refused("--learning_rate", &TrainingArguments::learning_rate, 1e300, "infinite");
  refused("--weight_decay", &TrainingArguments::weight_decay, 1e300, "infinite");
  refused("--max_grad_norm", &TrainingArguments::max_grad_norm, 1e39, "infinite");
  refused("--temperature", &TrainingArguments::temperature, 1e39, "infinite");
  refused("--temperature", &TrainingArguments::temperature, 1e-300, "0");
  refused("--temperature", &TrainingArguments::temperature, 1e-39, "0");
  refused("--adam_epsilon", &TrainingArguments::adam_epsilon, 1e-60, "0");
  refused("--adam_beta1", &TrainingArguments::adam_beta1, 1, "1");
  refused("--adam_beta2", &TrainingArguments::adam_beta2, 0.999999999999, "1");
}
