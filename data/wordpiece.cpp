#include "data/wordpiece.h"

#include <utility>

#include "data/tokenizer_definition.h"
#include "data/tokenizer_files.h"
#include "data/wordpiece_encoder.h"

namespace maxim {

struct WordPiece::State {
  explicit State(TokenizerDefinition files) : definition(std::move(files)), tables(definition) {}
  TokenizerDefinition definition;
  EncodingTables tables;
};

WordPiece::WordPiece(std::unique_ptr<State> state) : state_(std::move(state)) {}
WordPiece::WordPiece(WordPiece&&) noexcept = default;
WordPiece& WordPiece::operator=(WordPiece&&) noexcept = default;
WordPiece::~WordPiece() = default;

WordPiece WordPiece::load(const std::string& directory) {
  return WordPiece(std::make_unique<State>(read_tokenizer_files(directory)));
}

void WordPiece::save(const std::string& directory) const {
  write_tokenizer_files(directory, state_->definition);
}

int32_t WordPiece::size() const { return state_->definition.size; }
int32_t WordPiece::id_of(std::string_view token) const { return state_->definition.id_of(token); }
int32_t WordPiece::cls() const { return id_of(state_->definition.cls_token); }
int32_t WordPiece::sep() const { return id_of(state_->definition.sep_token); }
int32_t WordPiece::unk() const { return state_->tables.unk; }
int32_t WordPiece::mask() const { return id_of(state_->definition.mask_token); }
const std::vector<std::string>& WordPiece::warnings() const { return state_->definition.warnings; }

int32_t WordPiece::add_token(const std::string& token) {
  if (const int32_t known = id_of(token); known >= 0) return known;
  TokenizerDefinition& definition = state_->definition;
  AddedToken added;
  added.content = token;
  const int32_t id = definition.add(added, "the tokenizer");
  state_->tables.set_added_tokens(definition.added_tokens);
  return id;
}

bool WordPiece::encode(std::string_view text, int64_t limit, std::vector<int32_t>& out) const {
  const size_t most = limit < 0 ? SIZE_MAX - 1 : out.size() + static_cast<size_t>(limit);
  WordPieceEncoder(state_->tables, text, most + 1, out).run();  // one more shows that there is more
  if (out.size() <= most) return false;
  out.resize(most);
  return true;
}

}  // namespace maxim
