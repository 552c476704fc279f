// The files of a tokenizer: which are there, which of them overrides which, and what is written.
//
// Words and normaliser: tokenizer.json, else vocab.txt. Beside either, tokenizer_config.json: the
// names of the special tokens, added_tokens_decoder, and do_lower_case, strip_accents and
// tokenize_chinese_chars, which override tokenizer.json, since transformers (5.3, BertTokenizer)
// builds the normaliser from them. special_tokens_map.json and added_tokens.json are older forms,
// read where tokenizer_config.json has no added_tokens_decoder.
#pragma once

#include <string>

#include "data/tokenizer_definition.h"

namespace maxim {

// Throws InputError with the file (and the line of vocab.txt) that is missing or wrong, or naming
// the special token that the vocabulary lacks.
TokenizerDefinition read_tokenizer_files(const std::string& directory);

// Writes tokenizer.json and tokenizer_config.json into `directory`, synced, as PyLate 1.6 with
// transformers 5.3 does: pad_token is the mask token. Other members of the tokenizer_config.json
// that was read stay, but those that tokenizer.json makes superfluous.
void write_tokenizer_files(const std::string& directory, const TokenizerDefinition& definition);

}  // namespace maxim
