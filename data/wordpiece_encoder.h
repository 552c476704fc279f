// One text to token ids, read in blocks, so that a text of any length costs what its first `limit`
// ids cost. None of the stages of `tokenizers` needs to see the whole text:
//
//   text         -> pieces between the added tokens that are looked for as written  (RawPieces)
//   piece        -> its normal form, block by block                            (BertNormalizer)
//   normal form  -> added tokens that are looked for in it, words, punctuation
//   word         -> the longest entries of the vocabulary from the left, all but the first with the
//                   prefix ##; one [UNK] if that fails or the word has too many characters
//
// A word goes through the vocabulary's trie while its end is being looked for; four out of five
// English words are in the vocabulary and done then. Whitespace that lstrip and rstrip of an added
// token take along gives no ids anyway; so it matters to RawPieces only, where an added token of
// the normal form might have contained it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/added_tokens.h"
#include "data/bert_normalizer.h"
#include "data/byte_trie.h"
#include "data/raw_pieces.h"
#include "data/tokenizer_definition.h"

namespace maxim {

// A TokenizerDefinition in the form in which encoding needs it.
struct EncodingTables {
  explicit EncodingTables(const TokenizerDefinition& definition);
  // Throws InputError for a token that would be found everywhere or nowhere.
  void set_added_tokens(std::vector<AddedToken> tokens);

  BertNormalizer normalizer;
  ByteTrie words;
  uint32_t continuation;  // the node of the continuing subword prefix in `words`, or kNone
  int32_t unk;
  int64_t max_input_chars_per_word;
  AddedTokenMatcher raw, normalized;

  // What a character of the normal form may be, by its first byte.
  enum ByteClass : uint8_t { kWord, kSpace, kPunctuation, kNotAscii, kMaybeAddedToken };
  std::array<ByteClass, 256> byte_class;
};

class WordPieceEncoder {
 public:
  // Appends to `out` while it has less than `full` ids; it may end up with a few more.
  WordPieceEncoder(const EncodingTables& tables, std::string_view text, size_t full,
                   std::vector<int32_t>& out)
      : tables_(tables), pieces_(tables.raw, tables.normalizer, text), full_(full), out_(out) {}
  void run();

 private:
  // Why a word ends: at a character that is not part of words (or at the end of the piece), at an
  // added token, or it may go on in the next block.
  enum class Stop { kCharacter, kAddedToken, kBlock };

  void encode_piece();
  void refill();
  void scan();
  bool scan_known_word(const char*& p, const char*& q, const char* end);
  Stop find_word_end(const char*& q);
  bool find_added_token(const char* q);
  void encode_word(const char* p, const char* end);

  const EncodingTables& tables_;
  RawPieces pieces_;
  const size_t full_;
  std::vector<int32_t>& out_;

  std::string buffer_;        // normal form; if not from the piece's start, one character before
  size_t position_ = 0;       // what stands before is done
  size_t refused_until_ = 0;  // no added token starts before: inside one that single_word refused
  bool complete_ = false;     // the piece ends where the buffer ends
  bool inside_unk_ = false;   // of a word that was too long for the buffer; its [UNK] is out
  AddedTokenMatcher::Match match_{};  // of Stop::kAddedToken
};

}  // namespace maxim
