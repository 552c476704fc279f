#include "data/wordpiece_encoder.h"

#include <algorithm>
#include <utility>

#include "data/bert_unicode.h"
#include "runtime/error.h"

namespace maxim {

namespace {

// About 170 English words, as many as a document has on average: less would mean more calls, more
// would be normalised in vain when the limit is reached.
constexpr size_t kBlock = 1024;

constexpr int kLongestCharacter = 4;  // bytes

ByteTrie vocabulary_trie(const TokenizerDefinition& definition) {
  std::vector<std::pair<std::string_view, int32_t>> words;
  words.reserve(definition.vocabulary.size());
  for (const auto& [word, id] : definition.vocabulary)
    if (!word.empty()) words.emplace_back(word, id);  // an empty line of vocab.txt matches nothing
  return ByteTrie(std::move(words));
}

int64_t count_characters(const char* p, const char* end) {
  return std::count_if(p, end, [](char byte) { return !is_utf8_continuation(byte); });
}

}  // namespace

EncodingTables::EncodingTables(const TokenizerDefinition& definition)
    : normalizer(definition.normalizer()),
      words(vocabulary_trie(definition)),
      continuation(words.walk(definition.continuing_subword_prefix)),
      unk(definition.vocabulary.find(definition.unk_token)->second),
      max_input_chars_per_word(definition.max_input_chars_per_word) {
  set_added_tokens(definition.added_tokens);
}

void EncodingTables::set_added_tokens(std::vector<AddedToken> tokens) {
  // Special tokens come first, as in `tokenizers`, where of equal patterns the first counts.
  std::stable_partition(tokens.begin(), tokens.end(),
                        [](const AddedToken& t) { return t.special; });
  std::vector<AddedToken> kinds[2];
  std::vector<std::string> patterns[2];
  for (AddedToken& token : tokens) {
    std::string pattern = token.normalized ? normalizer(token.content) : token.content;
    if (pattern.empty())
      fail_input("the added token \"{}\" has nothing left after normalisation", token.content);
    // Invalid bytes of a text count as U+FFFD, but are compared as they are.
    if (!token.normalized && pattern.find("\xEF\xBF\xBD") != pattern.npos)
      fail_input("the added token \"{}\" contains U+FFFD, the sign of a damaged file",
                 token.content);
    patterns[token.normalized].push_back(std::move(pattern));
    kinds[token.normalized].push_back(std::move(token));
  }
  raw = AddedTokenMatcher(std::move(kinds[false]), patterns[false]);
  normalized = AddedTokenMatcher(std::move(kinds[true]), patterns[true]);

  for (int byte = 0; byte < 256; ++byte) {
    constexpr ByteClass kClasses[] = {kWord, kSpace, kPunctuation};  // as in CharacterClass
    byte_class[byte] = byte >= 0x80 ? kNotAscii : kClasses[static_cast<int>(character_class(byte))];
    if (normalized.may_start_with(static_cast<char>(byte))) byte_class[byte] = kMaybeAddedToken;
  }
}

void WordPieceEncoder::run() {
  while (out_.size() < full_) {
    encode_piece();
    if (out_.size() >= full_) return;
    const AddedToken* token = pieces_.next_token();
    if (token == nullptr) return;
    out_.push_back(token->id);
  }
}

void WordPieceEncoder::encode_piece() {
  buffer_.clear();
  position_ = refused_until_ = 0;
  complete_ = inside_unk_ = false;
  do {
    refill();
    scan();
  } while (!complete_ && out_.size() < full_);
}

void WordPieceEncoder::refill() {
  size_t done = position_;
  if (done > 0)  // keep one character, which single_word looks at
    do --done;
    while (done > 0 && is_utf8_continuation(buffer_[done]));
  buffer_.erase(0, done);
  position_ -= done;
  refused_until_ -= std::min(refused_until_, done);
  // A word that does not fit makes the buffer double, so that looking for its end stays linear.
  tables_.normalizer.append(pieces_.take(std::max(kBlock, buffer_.size())), buffer_);
  complete_ = pieces_.piece_is_over();
}

// Encodes what is in the buffer, but for a last word that may go on.
void WordPieceEncoder::scan() {
  const char* const begin = buffer_.data();
  const char* const end = begin + buffer_.size();
  const char* p = begin + position_;
  if (inside_unk_) inside_unk_ = find_word_end(p) == Stop::kBlock;
  while (!inside_unk_ && p < end && out_.size() < full_) {
    const char* q = p;
    const auto first = tables_.byte_class[static_cast<uint8_t>(*p)];
    if (first == EncodingTables::kSpace) {
      ++p;
      continue;
    }
    if (first == EncodingTables::kWord && scan_known_word(p, q, end)) continue;
    const Stop stop = find_word_end(q);
    if (stop == Stop::kBlock) {
      inside_unk_ = count_characters(p, q) > tables_.max_input_chars_per_word;
      if (!inside_unk_) break;
      out_.push_back(tables_.unk);
      p = q;
      break;
    }
    if (q > p) encode_word(p, q);
    p = q;
    if (stop == Stop::kAddedToken) {
      out_.push_back(match_.token->id);
      p = match_.end;
    } else if (p < end) {
      const CodePoint c = decode_utf8(p, end);
      if (character_class(c.value) == CharacterClass::kPunctuation) encode_word(p, p + c.bytes);
      p += c.bytes;
    }
  }
  position_ = p - begin;
}

// The common case: an ASCII word that is in the vocabulary, p..q, is encoded and p set to q. Else
// p..q is where the walk through the vocabulary ended: all of it is part of the word.
bool WordPieceEncoder::scan_known_word(const char*& p, const char*& q, const char* end) {
  uint32_t node = ByteTrie::kRoot;
  for (;; ++q) {
    if (q == end) return false;
    const auto c = tables_.byte_class[static_cast<uint8_t>(*q)];
    if (c == EncodingTables::kSpace || c == EncodingTables::kPunctuation) break;
    if (c != EncodingTables::kWord) return false;
    const uint32_t next = tables_.words.step(node, *q);
    if (next == ByteTrie::kNone) return false;
    node = next;
  }
  if (!tables_.words.ends_key(node) || q - p > tables_.max_input_chars_per_word) return false;
  out_.push_back(tables_.words.value(node));
  p = q;
  return true;
}

// Moves q, which stands at a character of a word or right behind it, to the word's end.
WordPieceEncoder::Stop WordPieceEncoder::find_word_end(const char*& q) {
  const char* const end = buffer_.data() + buffer_.size();
  const auto lookahead =
      static_cast<int64_t>(tables_.normalized.longest_pattern()) + kLongestCharacter;
  while (q < end) {
    switch (tables_.byte_class[static_cast<uint8_t>(*q)]) {
      case EncodingTables::kWord:
        ++q;
        continue;
      case EncodingTables::kSpace:
      case EncodingTables::kPunctuation:
        return Stop::kCharacter;
      case EncodingTables::kMaybeAddedToken:
        if (!complete_ && end - q < lookahead) return Stop::kBlock;
        if (find_added_token(q)) return Stop::kAddedToken;
        break;
      case EncodingTables::kNotAscii:
        break;
    }
    const CodePoint c = decode_utf8(q, end);
    if (character_class(c.value) != CharacterClass::kWord) return Stop::kCharacter;
    q += c.bytes;
  }
  return complete_ ? Stop::kCharacter : Stop::kBlock;
}

bool WordPieceEncoder::find_added_token(const char* q) {
  const char* const begin = buffer_.data();
  const char* const end = begin + buffer_.size();
  if (q < begin + refused_until_) return false;
  match_ = tables_.normalized.at(q, end);
  if (match_.token == nullptr) return false;
  const bool alone = (q == begin || !is_word_character(decode_utf8_backwards(begin, q).value)) &&
                     (match_.end == end || !is_word_character(decode_utf8(match_.end, end).value));
  if (!match_.token->single_word || alone) return true;
  refused_until_ = match_.end - begin;
  return false;
}

void WordPieceEncoder::encode_word(const char* p, const char* end) {
  const size_t before = out_.size();
  uint32_t node = ByteTrie::kRoot;
  bool known = end - p <= tables_.max_input_chars_per_word ||
               count_characters(p, end) <= tables_.max_input_chars_per_word;
  while (known && p < end) {
    const auto match =
        node == ByteTrie::kNone ? ByteTrie::Match{-1, p} : tables_.words.longest(node, p, end);
    known = match.value >= 0;
    out_.push_back(match.value);
    p = match.end;
    node = tables_.continuation;
  }
  if (known) return;
  out_.resize(before);
  out_.push_back(tables_.unk);
}

}  // namespace maxim
