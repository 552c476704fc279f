// tokenizer.json, version 1.0, of Hugging Face's `tokenizers`: a WordPiece model behind a
// BertNormalizer and a BertPreTokenizer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "data/tokenizer_definition.h"

namespace maxim {

// An added token as a string or as an object with its flags; one without flags is special or not,
// as `special` says, and normalised if not special.
AddedToken parse_added_token(const nlohmann::ordered_json& entry, bool special,
                             const std::string& path);

// Adds `token`, which the file `path` lists with the id `stated`. Throws InputError when
// TokenizerDefinition::add() gives it another one.
void add_listed_token(TokenizerDefinition& definition, AddedToken token, int64_t stated,
                      const std::string& path);

// Fills an empty definition. Throws InputError naming the file and the member that is wrong.
void read_tokenizer_json(const std::string& path, TokenizerDefinition& definition);

// Writes the layout of transformers 5, synced. Members that came from a tokenizer.json and mean
// nothing to Maxim (post_processor, decoder) stay as they were; truncation and padding become null.
void write_tokenizer_json(const std::string& path, const TokenizerDefinition& definition);

}  // namespace maxim
