// The ids of texts, for tokenizer_compare.py: tokenizer_ids DIRECTORY LIMIT [SAVE_TO [TOKEN…]]
//
// Loads DIRECTORY, adds the TOKENs, saves to SAVE_TO if that is not "-". Standard input: for each
// text a line with its size in bytes, then the text. Standard output: int32 numbers: for each text
// whether something was cut off, the count of its ids, the ids. Warnings go to standard error.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "data/wordpiece.h"
#include "runtime/error.h"

int main(int argc, char** argv) try {
  if (argc < 3) maxim::fail_input("usage: tokenizer_ids DIRECTORY LIMIT [SAVE_TO [TOKEN…]]");
  maxim::WordPiece tokenizer = maxim::WordPiece::load(argv[1]);
  for (const std::string& line : tokenizer.warnings()) std::cerr << "warning: " << line << "\n";
  for (int i = 4; i < argc; ++i) tokenizer.add_token(argv[i]);
  if (argc > 3 && std::string(argv[3]) != "-") tokenizer.save(argv[3]);
  std::string size, text;
  std::vector<int32_t> ids;
  while (std::getline(std::cin, size)) {
    text.resize(std::stoull(size));
    std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
    ids.assign(2, 0);
    ids[0] = tokenizer.encode(text, std::stoll(argv[2]), ids);
    ids[1] = static_cast<int32_t>(ids.size() - 2);
    std::fwrite(ids.data(), sizeof(int32_t), ids.size(), stdout);
  }
  return 0;
} catch (const maxim::InputError& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 2;
}
