#include "tests/run_catch.h"

int main(int argc, char** argv) { return maxim_tests::run_catch(argc, argv); }
