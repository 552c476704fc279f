#include "data/tokenizer_definition.h"

#include <algorithm>
#include <utility>

#include "runtime/error.h"

namespace maxim {

const AddedToken* TokenizerDefinition::added_token(std::string_view content) const {
  const auto found = std::find_if(added_tokens.begin(), added_tokens.end(),
                                  [&](const AddedToken& t) { return t.content == content; });
  return found == added_tokens.end() ? nullptr : &*found;
}

int32_t TokenizerDefinition::id_of(std::string_view token) const {
  if (const AddedToken* added = added_token(token)) return added->id;
  const auto word = vocabulary.find(token);
  return word == vocabulary.end() ? -1 : word->second;
}

int32_t TokenizerDefinition::add(AddedToken token, const std::string& where) {
  if (token.content.empty()) fail_input("{}: an added token is empty", where);
  token.id = id_of(token.content);
  if (token.id < 0) {
    auto next = static_cast<int32_t>(vocabulary.size());
    for (const AddedToken& added : added_tokens) next = std::max(next, added.id + 1);
    if (next != size)
      fail_input(
          "{}: the token \"{}\" cannot be added: there are {} words, but ids up to {}, so that "
          "Hugging Face would give it the id {}, which may be that of a word",
          where, token.content, vocabulary.size(), size - 1, next);
    if (next > kHighestId) fail_input("{}: there are more than {} tokens", where, kHighestId);
    token.id = next;
    size = next + 1;
  }
  if (const AddedToken* added = added_token(token.content))
    added_tokens[added - added_tokens.data()] = token;
  else
    added_tokens.push_back(token);
  return token.id;
}

}  // namespace maxim
